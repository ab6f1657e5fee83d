import sys

from chip.cli import main

sys.exit(main())
