# make demo: train six methods on digits and show the result.  make test: everything that must hold.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# One test process per core. make test WORKERS= runs all tests in one process.
WORKERS := -n auto --maxprocesses 4 --dist worksteal

.PHONY: setup demo test faults busy fuzz bench docs avalanche lightning

setup: $(STAMP)

# Torch comes first and alone, so that the pinned build is the one everything else is resolved against.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed, found: $$($(PYTHON) --version); use make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0 setuptools
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $(STAMP)

demo: setup
	$(BIN)/gcr demo

test: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -m "not gpu and not slow" $(WORKERS)

# Kills, full disks, damaged and hostile files, many processes, signals, 10,000 runs: 10 to 30 minutes on two cores.
faults: setup
	PYTHONPATH=. OMP_NUM_THREADS=1 $(BIN)/python tests/faults/run.py

# The quick tests while 8 processes spin: half an hour on two cores.
busy: setup
	$(BIN)/python tests/faults/busy.py

# Damaged files for every reader, 10 minutes each: make fuzz SECONDS=60 SEED=1
SECONDS ?= 600
SEED ?= 0
fuzz: setup
	$(BIN)/python tests/fuzz.py --seconds $(SECONDS) --seed $(SEED) --write

# Peers are timed too where their checkouts are: make bench CORDS=path ANOMALIB=path MAMMOTH=path
# What needs them, a GPU or long runs is printed from results/ at the end.
bench: setup
	$(BIN)/python benchmarks/selection.py $(if $(CORDS),--cords $(CORDS),--quick)
	$(BIN)/python benchmarks/selection_library.py --quick $(if $(ANOMALIB),--anomalib $(ANOMALIB))
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/start_up.py
	$(BIN)/python benchmarks/step_beside_mammoth.py $(if $(MAMMOTH),--mammoth $(MAMMOTH))
	$(BIN)/python benchmarks/evidence.py --show steps roofline step-on-cpu solvers library-speed pruning imagenet-cost

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Other frameworks, each in an environment of its own: .venv-avalanche, .venv-lightning.
avalanche:
	$(PYTHON) benchmarks/against_avalanche.py --setup

lightning:
	test -x .venv-lightning/bin/python || $(PYTHON) -m venv .venv-lightning
	.venv-lightning/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	.venv-lightning/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  lightning==2.6.6 datasets==5.2.0 safetensors scikit-learn pillow pytest hypothesis
	PYTHONPATH=. .venv-lightning/bin/python -m pytest tests/integrations tests/learner/test_hugging_face.py
	PYTHONPATH=. .venv-lightning/bin/python examples/lightning_module.py
