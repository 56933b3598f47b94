import sys, time, tempfile, torch
from pathlib import Path
sys.path[:0] = [str(Path(__file__).parents[1])]
torch.set_num_threads(1)
from victims import *; from together import *
warm_up()
root = Path(tempfile.mkdtemp())
t=time.time(); print(two_updates(root/"u", 4).to_dict(), time.time()-t, flush=True)
t=time.time(); print(processes_on_one_folder(root/"p", 8, 20, 0).to_dict(), time.time()-t, flush=True)
