"""Where a measurement was made: what a reader needs to compare it with their own."""

import datetime
import os
import platform


def describe():
    return {
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "os": f"{platform.system()} {platform.release().split('-')[0]}",
        "cpu": _cpu(),
        "cores": os.cpu_count(),
    }


def _cpu():
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
