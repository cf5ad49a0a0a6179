"""python scripts/start.py MODULE …: as `python -m MODULE …`, for the modules in this folder, but not from where one stands.

-m looks for every module, those of Python too, in the current folder first, and these commands run as root: whoever can write there would
be run. A script looks in its own folder, and that is this one.
"""

import runpy
import sys

module = sys.argv.pop(1)
runpy.run_module(module, run_name="__main__", alter_sys=True)
