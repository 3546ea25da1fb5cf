# Everything that is built or tried here. make help lists the targets.

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
GUEST   := backend/linux/guestbin/atoll-guest

# The race detector needs a C compiler.
RACE := $(if $(shell command -v gcc || command -v clang),-race)

# On CI what we claim has to be there: a test that would skip fails instead.
# REQUIRE=linux,docker,podman also tries container engines, which takes minutes
# more.
REQUIRE ?= $(if $(CI),linux)

.PHONY: help
help: ## show this
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 18

.PHONY: build
build: guest ## build bin/atoll and bin/atoll-guest
	@mkdir -p bin
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/atoll ./cmd/atoll
	@cp -f $(GUEST) bin/atoll-guest

# The guest first: bin/atoll holds a copy of it.
.PHONY: guest
guest:
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o $(GUEST) ./cmd/atoll-guest

.PHONY: run
run: build ## the main job: run commands in a sandbox, and look round in there
	@bin/atoll run --memory 256m --pids 64 -- sh -c ' \
		echo "hello from $$(hostname), as $$(id -un), process $$$$ of $$(ls -d /proc/[0-9]* | wc -l)"; \
		echo "files of its own:  $$(ls / | tr "\n" " ")"; \
		echo "network:           $$(tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d " " | tr "\n" " ")and nothing else"; \
		echo "kept for later" > /workspace/note && cat /workspace/note'

.PHONY: test
test: deps build ## everything that passes here, and at the end what was left out and why
	ATOLL_LINT=1 ATOLL_REQUIRE=$(REQUIRE) $(GO) run ./internal/testsum $(RACE) -timeout 18m ./...

.PHONY: soak
soak: build ## the same tests, long: hours
	ATOLL_SOAK=1 ATOLL_REQUIRE=$(REQUIRE) $(GO) run ./internal/testsum -timeout 24h ./...
	FUZZTIME=30m scripts/fuzz

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (10s) each
	scripts/fuzz

.PHONY: bench
bench: build ## the table of docs/bench.md; JSON=FILE also writes its rows
	$(GO) run ./bench $(if $(JSON),-json $(JSON)) $(BENCH)

.PHONY: lint
lint: ## gofmt, go vet, staticcheck, govulncheck
	scripts/lint

# On CI what tests and bench need is installed; elsewhere nothing is touched,
# and make deps does it when it is asked to.
.PHONY: deps
deps: ## what tests and bench need of the system, where apt-get can install it
	@scripts/deps $(if $(filter deps,$(MAKECMDGOALS)),install,$(if $(CI),install))

.PHONY: clean
clean: ## remove what was built
	rm -rf bin $(GUEST)
