import sys, time, tempfile, torch
from pathlib import Path
sys.path[:0] = [str(Path(__file__).parents[1])]
torch.set_num_threads(1)
from victims import *; from kills import *; from writes import *
warm_up()
root = Path(tempfile.mkdtemp()); root.chmod(0o755)
for v in VICTIMS:
    if sys.argv[2:] and v.name not in sys.argv[2:]: continue
    p = prepare(v, root / v.name.replace(" ","-"))
    for f in eval(sys.argv[1]):
        t=time.time()
        tally = f(p, root/"w")
        print(v.name, f.__name__, round(time.time()-t,2), tally.to_dict(), flush=True)
