"""What people type as prices: one rule for the command line and the page."""

RIGHT = {
    "": {},
    "h200:3.5": {"h200": 3.5},
    "h200=3.5": {"h200": 3.5},
    "H200:3.5": {"h200": 3.5},
    " h200 : 3.5 , H100 = 2 ": {"h200": 3.5, "h100": 2.0},
    "h200:3.5;h100:2": {"h200": 3.5, "h100": 2.0},
    "h200:3.5\nRTX-4090=.4\n": {"h200": 3.5, "rtx-4090": 0.4},
    "h100-sxm:2, A100-80GB:1.5": {"h100": 2.0, "a100": 1.5},  # other names of theirs
}
WRONG = {
    "h200:3,5": "h200:3,5: a comma stands between two GPUs; write h200:3.5",
    "h200=3, 5": "h200=3,5: a comma stands between two GPUs; write h200=3.5",
    "h2000:3": "no GPU h2000; did you mean h200?",
    "HH100=3": "no GPU HH100; did you mean h100?",
    "zzzzzzzz:3": "no GPU zzzzzzzz",
    "h200": "h200: write a GPU and its price, as in h200:3.5",
    "3.5": "3.5: write a GPU and its price, as in h200:3.5",
    "h200:": "h200:: the price must be a number above 0, as in h200:3.5",
    "h200:$3.5": "h200:$3.5: the price must be a number above 0, as in h200:3.5",
    "h200:-1": "h200:-1: the price must be a number above 0, as in h200:3.5",
    "h200:0": "h200:0: the price must be a number above 0, as in h200:3.5",
}
