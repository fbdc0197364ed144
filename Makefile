# `make demo` and `make test` need nothing but Python 3.11 to 3.14; everything goes into .venv.
# `make PYTHON=...` names the interpreter, else tools/venv.sh chooses one.
VENV := .venv
RUN := $(VENV)/bin/python
CHECK := $(VENV)/bin/fakexport check
PYTHON ?=

.PHONY: demo test test-slow test-all test-torch fuzz stress lint docs rules test-other-wheels test-package test-extras gpu-proof bench clean

demo: $(VENV)/.with-transformers
	$(CHECK) examples/mlp.py:cpu --target cpu
	$(CHECK) examples/mlp.py:gpu --target H100
	$(CHECK) examples/mlp.py:hybrid --target cpu+H100
	$(CHECK) hf:examples/configs/llama-3.1-405b.json --target 8xH100 \
		--device-map balanced --dtype bfloat16 --dynamic auto

# The tests of a file share what they build, so they stay in one process. Those that start a process import all
# of `src` in it, which takes a fifth longer where it is not compiled. pytest compiles the tests itself, in each
# process, and keeps what it made unless that variable is set.
test: $(VENV)/.with-test
	$(RUN) -m compileall -q src
	PYTHONDONTWRITEBYTECODE= $(RUN) -m pytest -n 2 --dist loadfile \
		-m "not heavy and not slow and not exhaustive and not gpu"

test-slow: $(VENV)/.with-test
	$(RUN) -m compileall -q src
	PYTHONDONTWRITEBYTECODE= $(RUN) -m pytest -n 2 --dist loadgroup \
		-m "(heavy or slow) and not alike and not exhaustive and not gpu"

# Every architecture in every test of its kind: some hours.
test-all: $(VENV)/.with-test
	$(RUN) -m pytest -n 2 --dist loadgroup -m "not gpu"

# The default tests on another torch, in an environment of its own: make test-torch TORCH=2.15. TRANSFORMERS=5.17
# takes that version. tests/versions.py says what a version lacks. The result becomes a row of docs/support.md.
TORCH ?= 2.13
TRANSFORMERS ?=
TORCH_VENV := .venv-torch-$(TORCH)$(addprefix -,$(TRANSFORMERS))
test-torch:
	$(MAKE) VENV=$(TORCH_VENV) ONLY_TORCH=$(TORCH) $(TORCH_VENV)/.with-test-core
	$(if $(TRANSFORMERS),$(TORCH_VENV)/bin/python -m pip install --quiet 'transformers==$(TRANSFORMERS).*')
	mkdir -p build
	$(TORCH_VENV)/bin/python -m compileall -q src
	PYTHONDONTWRITEBYTECODE= $(TORCH_VENV)/bin/python -m pytest -n 2 --dist loadfile \
		-m "not heavy and not slow and not exhaustive and not gpu" --junitxml=build/torch-$(TORCH).xml; \
	code=$$?; $(TORCH_VENV)/bin/python tools/support_row.py build/torch-$(TORCH).xml \
		"make test-torch TORCH=$(TORCH)$(if $(TRANSFORMERS), TRANSFORMERS=$(TRANSFORMERS))"; exit $$code

# Coverage-guided, where a wheel of atheris exists. What a fuzzer finds is printed and left in the file fuzz-crash-*.
# FUZZ_SEED=0 takes another way each time, which is what a long run is for: make fuzz FUZZ_SEED=0 FUZZ_S=900
FUZZ_S ?= 60
FUZZ_SEED ?= 1
FUZZ_TARGETS ?= archive,manifest,program,safetensors,index,object,toml,yaml,adapter
fuzz: $(VENV)/.with-fuzz
	$(RUN) -m tests.fuzz.guided $(FUZZ_TARGETS) -max_total_time=$(FUZZ_S) \
		-seed=$(FUZZ_SEED) -artifact_prefix=fuzz- -print_final_stats=1 -verbosity=0

# Threads of one process, with memory that is checked: make stress STRESS_S=600
STRESS_S ?= 600
stress: $(VENV)/.with-test
	PYTHONMALLOC=debug $(RUN) -m tests.stress.threads $(STRESS_S)

lint: $(VENV)/.with-lint
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

# What fakexport relies on in torch for platforms that the tests do not run on: only the wheels are read.
TORCH_WHEELS := build/torch-wheels
OTHER_PLATFORMS := macosx_14_0_arm64 win_amd64
test-other-wheels: $(VENV)/.with-test
	for platform in $(OTHER_PLATFORMS); do \
		$(RUN) -m pip download --quiet --no-deps --only-binary :all: --python-version 3.11 --platform $$platform \
			--dest $(TORCH_WHEELS) $$(grep '^torch==' constraints.txt) || exit 1; \
	done
	FAKEXPORT_TORCH_WHEELS=$(TORCH_WHEELS) $(RUN) -m pytest tests/torch_facts/test_other_wheels.py

# The sdist and the wheel, and the demo from the wheel in an environment that has nothing else.
test-package: $(VENV)/.created
	sh tools/package.sh $(VENV)

# The wheel of `make test-package` with each extra alone, in an empty environment: 20 minutes, most of them pip.
test-extras: $(VENV)/.created
	$(RUN) tools/try_extras.py dist/fakexport-*.whl

# Pages that repeat texts of the code. The page of printed fixes checks many models, which takes minutes.
rules: $(VENV)/.with-test
	$(VENV)/bin/fakexport explain --all > docs/rules.md
	$(VENV)/bin/python tools/option_tables.py
	$(VENV)/bin/python tools/json_documents.py
	$(RUN) -m tests.printed_fixes

# The documentation as a site in build/docs. A warning is an error, and a link to nowhere is a warning.
docs: $(VENV)/.with-docs
	$(RUN) -m sphinx --quiet --nitpicky --fail-on-warning --conf-dir docs --doctree-dir build/doctrees . build/docs

# On a machine with an NVIDIA GPU: what fakexport says without one, next to what the GPU does, in nine minutes.
# Offline, where torch and transformers are there already: PYTHONPATH=src:. python3 -m benchmarks.gpu_proof
GPU_PROOF ?=
gpu-proof: $(VENV)/.with-test
	$(RUN) -m benchmarks.gpu_proof $(GPU_PROOF)

bench: $(VENV)/.with-bench
	$(RUN) -m benchmarks

clean:
	rm -rf $(VENV) .venv-torch-* build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# The part after `.with-` is an extra of pyproject.toml.
$(VENV)/.with-%: $(VENV)/.created pyproject.toml
	$(RUN) -m pip install --quiet --constraint $(VENV)/constraints.txt --editable '.[$*]'
	@touch $@

$(VENV)/.created: constraints.txt tools/venv.sh
	sh tools/venv.sh $(VENV) "$(PYTHON)" $(ONLY_TORCH)
	@touch $@

.PRECIOUS: $(VENV)/.with-% $(VENV)/.created
