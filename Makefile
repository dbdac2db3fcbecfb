PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PEERS := .venv-bench
FOREIGN_APPS := .venv-adoption
CHARTS := $(VENV)/.charts
SITE := .venv-docs
MINUTES ?= 3
SOAK_STEPS ?= 200000

# Tests start hundreds of processes: none should compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup up test test-system test-adoption test-rabbitmq matrix chaos chaos-catches chaos-two-apps soak foreign-tests mutants bench bench-smoke check render screenshots docs docs-version lock dist package-test sbom audit clean

help: ## show this list
	@echo "To change the project:"
	@grep -hE '^[a-z-]+:.* ## ' $(MAKEFILE_LIST) | awk -F ':.* ## ' '{printf "  %-16s %s\n", $$1, $$2}'
	@echo "To try it hard, measure it and publish it:"
	@grep -hE '^[a-z-]+:.* ### ' $(MAKEFILE_LIST) | awk -F ':.* ### ' '{printf "  %-16s %s\n", $$1, $$2}'

setup: $(STAMP) ## make .venv with everything that is needed

$(STAMP): requirements.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --require-hashes -r requirements.txt
	$(BIN)/python -m pip install --no-deps --no-build-isolation --editable .
	touch $@

up: $(STAMP) ## run the examples: server, beat, workers, page and /metrics, until Ctrl-C
	$(BIN)/supervisor -A examples.app up --concurrency 6

SYSTEM := tests/alerts tests/hosts tests/tools/test_pictures.py tests/tools/deploy tests/test_sbom.py tests/test_wheel.py \
  tests/tools/web/test_browser.py tests/tools/web/test_proxy.py tests/acceptance/test_tutorial.py \
  tests/acceptance/test_tls.py tests/acceptance/test_sentinel.py tests/acceptance/test_up.py

# In a fresh clone, eight processes would each compile all of the tests.
test: $(STAMP) ## run the tests; those with programs of others are in test-system
	test -d tests/core/__pycache__ || $(BIN)/python -m pytest -q --collect-only tests > /dev/null
	$(BIN)/python -m pytest -n 8 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 \
	  --ignore tests/rabbitmq --ignore tests/adoption $(addprefix --ignore ,$(SYSTEM))

test-system: $(STAMP) $(CHARTS) ## run the tests of what is delivered: wheel, rendered files, alerts, browser, tutorial, `up`, TLS
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder $(SYSTEM)

# Without it the tests of the chart are skipped: it has no wheel for every machine.
$(CHARTS): tests/tools/deploy/requirements.txt $(STAMP)
	$(BIN)/python -m pip install --quiet --require-hashes -r $< || echo "no chart is tested" >&2
	touch $@

# An environment of its own: the apps need more than we are developed with.
test-adoption: MINUTES = 0
test-adoption: $(FOREIGN_APPS) ### run the tests with apps of others, for MINUTES=0 each
	ADOPTION_MINUTES=$(MINUTES) $(FOREIGN_APPS)/bin/python -m pytest -n 4 tests/adoption

$(FOREIGN_APPS): tests/adoption/requirements.txt
	test -x $@/bin/python || $(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --require-hashes -r tests/adoption/requirements.txt
	$@/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

test-rabbitmq: $(STAMP) ### run the tests with RabbitMQ as the broker
	@command -v rabbitmq-server >/dev/null || { echo "install Debian's rabbitmq-server" >&2; exit 1; }
	$(BIN)/python -m pytest tests/rabbitmq

matrix: $(STAMP) ### run the heart of the tests with each Celery (ONLY=5.4), on a server (SERVER=path)
	$(BIN)/python -m tools.matrix $(if $(ONLY),--only $(ONLY)) $(if $(SERVER),--server $(SERVER))

chaos: $(STAMP) ### kill everything at random for MINUTES=3 (SEED=, DIRECTORY=, POOL=) and judge the rest
	CHAOS_POOL=$(POOL) $(BIN)/python -m tools.chaos --minutes $(MINUTES) \
	  $(if $(SEED),--seed $(SEED)) $(if $(DIRECTORY),--directory $(DIRECTORY))

chaos-two-apps: $(STAMP) ### kill two apps on one Redis for MINUTES=5: no message goes to the other
	$(BIN)/python -m tools.chaos.two_apps --minutes $(if $(filter file,$(origin MINUTES)),5,$(MINUTES)) $(if $(SEED),--seed $(SEED))

chaos-catches: $(STAMP) ### break the product in many ways (ONLY=) and see that chaos notices each
	$(BIN)/python -m tools.chaos.catches $(if $(ONLY),--only "$(ONLY)") $(if $(SEED),--seed $(SEED))

soak: $(STAMP) ### drive the ledger against its model for SOAK_STEPS steps
	SUPERVISOR_SOAK_STEPS=$(SOAK_STEPS) $(BIN)/python -m pytest \
	  tests/core/ledger/test_model.py tests/core/ledger/test_stages_model.py tests/core/ledger/test_older_ledgers.py

foreign-tests: $(STAMP) ### run tests of others (SUITE=celery TESTS= GO_ON=1) as they are, and supervised
	$(BIN)/python -m tools.foreign $(if $(GO_ON),--go-on) $(or $(SUITE),celery) $(TESTS)

mutants: $(STAMP) ### break Lua and guard in small ways (ONLY= MOST=): tests must notice each
	$(BIN)/python -m tools.mutants $(if $(ONLY),--only '$(ONLY)') $(if $(MOST),--most $(MOST))

bench: $(PEERS) ### measure us and others, write docs/internals/benchmarks.* (ONLY=emission ROUNDS=3 QUICK=1)
	$(PEERS)/bin/python -m tools.bench $(if $(ONLY),--only $(ONLY)) $(if $(QUICK),--quick) \
	  $(if $(ROUNDS),--rounds $(ROUNDS))

bench-smoke: $(STAMP) ### fail where a ratio to a peer has fallen by half since `make bench`, in a minute
	$(BIN)/python -m tools.bench.smoke

# An environment of its own: others need older versions of what we are developed with.
$(PEERS): tools/bench/requirements.txt
	test -x $@/bin/python || $(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --require-hashes -r tools/bench/requirements.txt
	$@/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

check: $(STAMP) ## formatting, lint (Lua where luacheck is installed), types, the examples
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m tests.lua_lint
	$(BIN)/mypy
	$(BIN)/supervisor -A examples.app check schedules

RENDER := $(BIN)/supervisor -A examples.app render
EXAMPLES := --schedules schedules --concurrency 6 --env SUPERVISOR_EXAMPLES_DIR=/var/lib/supervisor

render: $(STAMP) ### write deploy/systemd and deploy/compose again, from schedules/
	$(RENDER) systemd --output deploy/systemd $(EXAMPLES)
	$(RENDER) compose --output deploy/compose $(EXAMPLES) --monitoring deploy

screenshots: $(STAMP) ### take docs/pictures again, of the examples, with Chromium
	$(BIN)/python -m tools.pictures

docs: $(SITE) ## build the documentation as a site, build/site; any warning is an error
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs --quiet build --config-file deploy/site/mkdocs.yml

# On the branch gh-pages, which it commits to; PUSH=1 pushes it to origin.
docs-version: export PATH := $(CURDIR)/$(SITE)/bin:$(PATH)
docs-version: export NO_MKDOCS_2_WARNING := 1
docs-version: $(SITE) ### add the documentation as VERSION=1.2 (PUSH=1) to the site of all versions
	mike deploy --config-file deploy/site/mkdocs.yml $(if $(PUSH),--push) --update-aliases $(VERSION) latest
	mike set-default --config-file deploy/site/mkdocs.yml $(if $(PUSH),--push) latest

$(SITE): deploy/site/requirements.txt
	test -x $@/bin/python || $(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --require-hashes -r deploy/site/requirements.txt
	$@/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

lock: ### write all requirements.txt again from pyproject.toml
	test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url \
	  --python-version 3.11 --all-extras --group dev pyproject.toml -o requirements.txt
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url \
	  --python-version 3.11 --constraint requirements.txt pyproject.toml -o deploy/requirements.txt
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url \
	  --python-version 3.11 --constraint deploy/requirements.txt --extra embedded --group peers \
	  pyproject.toml -o tools/bench/requirements.txt
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url \
	  --python-version 3.11 --constraint requirements.txt --all-extras --group adoption \
	  pyproject.toml -o tests/adoption/requirements.txt
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url \
	  --python-version 3.11 --group pyproject.toml:charts -o tests/tools/deploy/requirements.txt
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url \
	  --python-version 3.11 --constraint deploy/requirements.txt --group docs \
	  pyproject.toml -o deploy/site/requirements.txt
	for celery in 5.4 5.5 5.6 5.7; do \
	  $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url \
	    --python-version 3.11 --group heart --group celery-$$(echo $$celery | tr . -) \
	    pyproject.toml -o tools/matrix/celery-$$celery.txt || exit; done

dist: $(STAMP) ### build wheel and source archive into dist/
	rm -f dist/*.whl dist/*.tar.gz
	$(BIN)/python -m hatchling build -d dist

JUDGES := $(VENV)/judges

package-test: dist ### install both in clean environments of each Python here, and run a job
	test -x $(JUDGES)/bin/twine || { $(PYTHON) -m venv $(JUDGES) && \
	  $(JUDGES)/bin/python -m pip install --quiet twine check-jsonschema; }
	$(JUDGES)/bin/twine check --strict dist/*.whl dist/*.tar.gz
	$(JUDGES)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/python -m tools.package

SBOM ?= dist/sbom.cdx.json

sbom: $(STAMP) ### write what a deployment installs, as CycloneDX, to dist/sbom.cdx.json
	mkdir -p $(dir $(SBOM))
	$(BIN)/python -W ignore -m cyclonedx_py requirements --pyproject pyproject.toml \
	  --output-reproducible --output-file $(SBOM) deploy/requirements.txt

AUDIT := $(VENV)/audit

audit: ### ask the advisory database about everything that is pinned; what it cannot be asked about fails
	test -x $(AUDIT)/bin/pip-audit || { $(PYTHON) -m venv $(AUDIT) && \
	  $(AUDIT)/bin/python -m pip install --quiet pip-audit; }
	$(AUDIT)/bin/pip-audit --require-hashes --strict --disable-pip -r deploy/requirements.txt
	$(AUDIT)/bin/pip-audit --require-hashes --strict --disable-pip -r requirements.txt

clean: ## remove .venv, caches and what `make up` left
	rm -rf $(VENV) $(PEERS) $(FOREIGN_APPS) $(SITE) build .foreign .supervisor .pytest_cache .mypy_cache .ruff_cache .hypothesis
