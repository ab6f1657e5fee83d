"""Print the seconds CHIP needs for a point in a process that has answered before, timed as the peers are."""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent / "peers"))

from asking import seconds_per_point

from chip.predictor.request import answer

print(json.dumps({"seconds_per_point": seconds_per_point(answer, int(sys.argv[1]))}))
