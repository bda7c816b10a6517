# shellcheck shell=bash
# The programs, built from the modules that pin their versions (hack/tools/*/go.mod), and the images made of them.

# tool_version MODULE-FOLDER GO-MODULE
tool_version() { (cd "$ROOT/hack/tools/$1" && go list -m -f '{{.Version}}' "$2"); }

# tool_fingerprint FOLDER: what decides whether the programs built from it are current.
tool_fingerprint() { (cd "$1" && { go version; cat go.mod; cat go.sum ./*.go 2>/dev/null || true; } | sha256sum | cut -d' ' -f1); }

tool_folder() { if [[ $1 == workload ]]; then printf %s "$ROOT/hack/cluster/workload"; else printf %s "$ROOT/hack/tools/$1"; fi; }

tool_outputs() {
	case $1 in
	kubernetes) say kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl ;;
	prometheus) say prometheus promtool ;;
	*) say "$1" ;;
	esac
}

tool_current() {
	local program
	[[ "$(cat "$BIN/.$1.stamp" 2>/dev/null)" == "$(tool_fingerprint "$(tool_folder "$1")")" ]] || return 1
	for program in $(tool_outputs "$1"); do [[ -x $BIN/$program ]] || return 1; done
}

# go_build TOTAL FOLDER ARG…: go build with a count of the packages it compiles, for the live line.
go_build() {
	local total=$1 folder=$2 line count=0
	shift 2
	go build -C "$folder" -v -trimpath "$@" 2>&1 | while IFS= read -r line; do
		count=$((count + 1))
		printf '%s\n' "$line"
		note "$STEP: compiled $count of at most $total packages,"
	done
}

build_tool() {
	local tool=$1 folder version number total packages
	local -x GOFLAGS=${GOFLAGS:-}
	STEP=$2
	folder=$(tool_folder "$tool")
	note "$STEP"
	case $tool in
	workload) packages=. ;;
	etcd) packages=go.etcd.io/etcd/server/v3 ;;
	coredns) packages=github.com/coredns/coredns ;;
	prometheus)
		packages=tool
		# Of its service discoveries the one for Kubernetes: the clouds' are most of what there is to compile.
		GOFLAGS+=" -tags=remove_all_sd,enable_kubernetes_sd"
		;;
	*) packages=tool ;;
	esac
	total=$(cd "$folder" && go list -deps "$packages" | wc -l)
	case $tool in
	kubernetes)
		# Without a version in it, everything that parses the API server's version breaks.
		version=$(tool_version kubernetes k8s.io/kubernetes)
		number=${version#v}
		go_build "$total" "$folder" -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version -X k8s.io/component-base/version.gitMajor=${number%%.*} -X k8s.io/component-base/version.gitMinor=$(cut -d. -f2 <<<"$number")" -o "$BIN/" tool
		;;
	coredns | workload)
		# They run in images that hold nothing else.
		CGO_ENABLED=0 go_build "$total" "$folder" -ldflags "-s -w" -o "$BIN/$tool" "$packages"
		;;
	etcd) go_build "$total" "$folder" -ldflags "-s -w" -o "$BIN/etcd" "$packages" ;;
	# Its package is called kwok, as another tool is.
	karpenter) go_build "$total" "$folder" -ldflags "-s -w" -o "$BIN/karpenter" tool ;;
	*) go_build "$total" "$folder" -ldflags "-s -w" -o "$BIN/" tool ;;
	esac
	tool_fingerprint "$folder" >"$BIN/.$tool.stamp"
}

# build_tools TOOL…: those that are not current.
build_tools() {
	local tool wanted=() i=0
	mkdir -p "$BIN"
	for tool in "$@"; do
		if [[ ! -f $(tool_folder "$tool")/go.mod ]]; then die "there is no tool called $tool" "use one of: workload $(cd "$ROOT/hack/tools" && echo *)"; fi
		if ! tool_current "$tool"; then wanted+=("$tool"); fi
	done
	if ((${#wanted[@]} > 0)) && [[ " ${wanted[*]} " == *" kubernetes "* ]]; then
		say "  (Kubernetes is built from source when it is not there yet: about 5 minutes on 2 cores, once)"
	fi
	for tool in "${wanted[@]}"; do
		i=$((i + 1))
		stage "building $tool" build_tool "$tool" "($i of ${#wanted[@]})"
	done
}

cmd_build() {
	if ! have go; then die "the go command is missing" "install Go 1.26 or newer"; fi
	if (($# == 0)); then set -- workload etcd coredns kubernetes; fi
	build_tools "$@"
	say "programs in $BIN"
}

# make_image NAME PROGRAM USER: a docker-archive whose only layer is the one static program.
make_image() {
	local name=$1 program=$2 user=$3 work digest
	work=$(mktemp -d "$IMAGE_DIR/tmp.XXXXXX")
	mkdir "$work/layer"
	install -m 0755 "$BIN/$program" "$work/layer/$program"
	# Names in a tar that do not change with the clock keep the image's digest the same from run to run.
	tar -C "$work/layer" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf "$work/layer.tar" "$program"
	digest=$(sha256sum "$work/layer.tar" | cut -d' ' -f1)
	printf '{"architecture":"%s","os":"linux","config":{"User":"%s","Entrypoint":["/%s"],"WorkingDir":"/"},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]},"created":"1970-01-01T00:00:00Z","history":[{"created":"1970-01-01T00:00:00Z","created_by":"hack/cluster"}]}' \
		"$(go env GOARCH)" "$user" "$program" "$digest" >"$work/config.json"
	printf '[{"Config":"config.json","RepoTags":["localhost/%s:1"],"Layers":["layer.tar"]}]' "$name" >"$work/manifest.json"
	tar -C "$work" -cf "$work/out.tar" manifest.json config.json layer.tar
	mv "$work/out.tar" "$IMAGE_DIR/$name.tar"
	rm -rf "$work"
}

make_images() {
	umask 022
	rm -rf "$IMAGE_DIR"/tmp.*
	make_image pause workload 65535:65535
	make_image workload workload 65535:65535
	make_image coredns coredns ""
}
