# kube-node-ready. `make` alone lists what there is.

VERSION    ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT     ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
BUILD_DATE ?= $(shell date -u +%Y-%m-%dT%H:%M:%SZ)
IMAGE      ?= ghcr.io/imunhatep/kube-node-ready
BIN        ?= bin/kube-node-ready
CONTROLLER ?= bin/kube-node-ready-controller
PLUGIN     ?= bin/kubectl-node_ready
# Version and commit are set here: what Go reads from git would make two builds differ.
# The HTTP/2 in net/http is a second copy of what client-go brings along: 0.5 MB. The Dockerfile has the same, and CAs.
LDFLAGS     = -s -w -funcalign=16 -X main.version=$(VERSION) -X main.commit=$(COMMIT) -X main.buildDate=$(BUILD_DATE)
TOOLS       = $(CURDIR)/bin/tools
CLUSTER     = hack/cluster/cluster

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help
help: ## this list
	@awk 'BEGIN {FS = ":.*## "} /^## / {printf "\n%s\n", substr($$0, 4)} /^[a-z0-9-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo

## The main job
.PHONY: demo build agent controller plugin docker-build run-dry
demo: agent ## a real cluster on this machine, and the gate at work in it, step by step (root, Linux)
	hack/demo.sh

build: agent controller ## bin/kube-node-ready and bin/kube-node-ready-controller (VERSION=, COMMIT=, BUILD_DATE=, GOOS=, GOARCH=)

agent:
	CGO_ENABLED=0 go build -tags nethttpomithttp2 -trimpath -buildvcs=false -ldflags "$(LDFLAGS)" -o $(BIN) .

controller:
	CGO_ENABLED=0 go build -C controller -tags nethttpomithttp2 -trimpath -buildvcs=false -ldflags "$(LDFLAGS)" -o $(abspath $(CONTROLLER)) .

plugin: ## bin/kubectl-node_ready, which is `kubectl node-ready` where it is on the PATH (VERSION=, COMMIT=, GOOS=, GOARCH=)
	CGO_ENABLED=0 go build -C controller -tags nethttpomithttp2 -trimpath -buildvcs=false -ldflags "$(LDFLAGS)" -o $(abspath $(PLUGIN)) ./cmd/kubectl-node_ready

docker-build: ## the images $(IMAGE):VERSION and $(IMAGE)-controller:VERSION, with docker or podman (VERSION=)
	build="$$(command -v docker || command -v podman || { echo "neither docker nor podman is here; hack/cluster/cluster image builds with buildah" >&2; echo false; }) \
		build --build-arg VERSION=$(VERSION) --build-arg COMMIT_HASH=$(COMMIT) --build-arg BUILD_DATE=$(BUILD_DATE)"; \
		$$build -t $(IMAGE):$(VERSION) . && $$build --target controller -t $(IMAGE)-controller:$(VERSION) .

run-dry: agent ## every check once from this machine, with a report; writes nothing
	bin/kube-node-ready --dry-run

## Tests
.PHONY: test test-all lint unit mutants simulation lives chart-test e2e e2e-karpenter compatibility faults words vulncheck platform-check
test: ## what a change must not break, in minutes; without root all but the tests on the real node
	hack/test.sh

test-all: ## make test, and then every other test: race detector, lint, chart on a cluster, faults, Karpenter, release, examples
	hack/test.sh all

lint: $(TOOLS)/golangci-lint ## gofmt, vet and the linters of .golangci.yml, in every module
	hack/lint.sh

unit: $(TOOLS)/gotestsum ## unit tests with the race detector
	$(TOOLS)/gotestsum --format pkgname -- -race ./...
	cd controller && $(TOOLS)/gotestsum --format pkgname -- -race ./...
	cd controller && $(TOOLS)/gotestsum --format pkgname -- -run TestRecoversFromALargeOutage ./internal/worker
	hack/mutants.sh check

mutants: ## restore past bugs and remove protections, one at a time: does the simulation notice? (MUTANT= names one; LIMIT=300 CPU seconds each)
	hack/mutants.sh $(MUTANT)

simulation: ## agents, workers and controllers in a simulated cluster: known seeds, then new ones (SECONDS=60, SEED=)
	hack/simulation.sh $(or $(SECONDS),60) $(SEED)

lives: ## random lives of one agent on one node (SECONDS=60 or SEEDS=10000; SEED=)
	hack/lives.sh $(if $(SEEDS),-seeds $(SEEDS),-for $(or $(SECONDS),60)s) $(if $(SEED),-seed $(SEED))

chart-test: $(TOOLS)/helm $(TOOLS)/helm-docs $(TOOLS)/helm-unittest ## the chart: lint, tests, and whether what is made from it is current
	hack/chart-test.sh

e2e: agent $(TOOLS)/helm $(TOOLS)/gotestsum ## the tests on a test cluster with a real kubelet (root, Linux); KEEP=1 leaves the cluster up, RUN= picks tests
	hack/e2e.sh

e2e-karpenter: agent $(TOOLS)/helm $(TOOLS)/gotestsum ## the agent on the nodes of the real Karpenter, 0 to 100 and back (root, Linux); KEEP=1, RUN=
	E2E=long PACKAGES=./karpenter hack/e2e.sh

compatibility: agent $(TOOLS)/helm $(TOOLS)/gotestsum ## the core tests on every Kubernetes of hack/tools, and the table of docs/reference.md (root, Linux); ONLY="1.30 1.37"
	hack/compatibility.sh

faults: agent $(TOOLS)/helm $(TOOLS)/gotestsum ## the agent under faults, the long version, and one table of them (root, Linux); RUN= picks tests
	hack/faults.sh

words: ## how many words the documents for users have; fails nothing
	@go test -C hack/docs -count=1 -run TestWords -v . | grep '^ *docs_test.go' | sed 's/^ *docs_test.go:[0-9]*://'

vulncheck: $(TOOLS)/govulncheck ## known vulnerabilities in what the code of agent and controller calls (VULNDB= is the database, https://vuln.go.dev)
	hack/vulncheck.sh || [ $$? = 75 ] # left out, and said so

platform-check: ## format, arguments and tests of hack/examples/eks-platform, without an account (needs terraform; builds the AWS provider once)
	hack/platform-check.sh

## Benchmarks
.PHONY: bench bench-5000 linked
bench: agent ## what the gate is good for and what it costs, against budgets (root, Linux); BENCH="-only benefit", KEEP=1
	hack/bench.sh $(BENCH)

bench-5000: agent ## 5,000 nodes at once
	hack/bench.sh -only scale -nodes 5000 $(BENCH)

linked: ## what is linked into the agent, by module and package, and why (TOP=25)
	hack/linked.sh

## The chart
.PHONY: manifests verify-manifests
manifests: $(TOOLS)/helm $(TOOLS)/helm-docs ## what is made from the chart: schema, chart/README.md, hack/manifests
	hack/manifests/generate.sh

verify-manifests: $(TOOLS)/helm $(TOOLS)/helm-docs ## fail where one of these is stale
	hack/manifests/generate.sh verify

## The test cluster
.PHONY: cluster-up cluster-down cluster-image
cluster-up: ## a real cluster on this machine (NODES=)
	$(CLUSTER) up

cluster-image: ## the agent's image from the Dockerfile, onto its nodes
	VERSION=$(VERSION) COMMIT_HASH=$(COMMIT) BUILD_DATE=$(BUILD_DATE) $(CLUSTER) image

cluster-down: ## stop it; nothing is left
	$(CLUSTER) down

## Release
.PHONY: release-dry-run workflows
release-dry-run: $(TOOLS)/helm ## what a release consists of, into dist/, made twice and compared (root, Linux)
	hack/release.sh dry-run

workflows: $(TOOLS)/actionlint ## lint .github/workflows
	$(TOOLS)/actionlint -color

## Cleaning
.PHONY: clean
clean: ## what was built here; the cluster's state too, once it is down
	@if [ -e .cluster/run ] && [ "$$(id -u)" = 0 ]; then $(CLUSTER) down; fi
	rm -rf bin dist .cluster

# Tools are pinned in modules of their own, by the tool directive of Go modules.
$(TOOLS)/%: hack/tools/%/go.mod hack/tools/%/go.sum
	@echo "building $* (pinned in $<)"
	@mkdir -p $(TOOLS)
	@go build -C hack/tools/$* -o $(TOOLS)/ tool
	@touch $@

# The module is not built as it stands: see the script.
$(TOOLS)/terraform-provider-aws: hack/tools/terraform-provider-aws/build.sh hack/tools/terraform-provider-aws/go.mod hack/tools/terraform-provider-aws/go.sum
	@mkdir -p $(TOOLS)
	@nice -n 5 $< $@
	@touch $@
