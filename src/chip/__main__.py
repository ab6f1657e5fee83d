import sys

from chip.show.cli import main

sys.exit(main())
