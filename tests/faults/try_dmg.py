import sys, time, tempfile, torch
from pathlib import Path
sys.path[:0] = [str(Path(__file__).parents[1])]
torch.set_num_threads(1)
from victims import *; from damage import *
warm_up()
root = Path(tempfile.mkdtemp())
for k in KINDS:
    if sys.argv[2:] and k.name not in sys.argv[2:]: continue
    t=time.time()
    tally = damage_kind(k, root / k.name.replace(" ","-"), int(sys.argv[1]), 0)
    print(k.name, round(time.time()-t,2), tally.to_dict(), flush=True)
