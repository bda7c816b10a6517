# shellcheck shell=bash
# The programs, built from the modules that pin their versions (hack/tools/*/go.mod), and the images made of them.

# Static programs, because some run in images without libc. The same for all, so that they share the compiled standard library.
export CGO_ENABLED=0

tool_folder() { if [[ $1 == workload ]]; then printf %s "$ROOT/hack/cluster/workload"; else printf %s "$ROOT/hack/tools/$1"; fi; }

# tool_fingerprint TOOL: what decides whether the programs built from it are current.
tool_fingerprint() { (cd "$(tool_folder "$1")" && { go version; cat go.mod; cat go.sum ./*.go 2>/dev/null || true; } | sha256sum | cut -d' ' -f1); }

tool_packages() { case $1 in workload | coredns) say . ;; *) say tool ;; esac; }

# tool_flags TOOL: of Prometheus' service discoveries only the one for Kubernetes; those for clouds are most of what it compiles.
tool_flags() { if [[ $1 == prometheus ]]; then say -tags=remove_all_sd,enable_kubernetes_sd; else say -tags=; fi; }

tool_outputs() {
	case $1 in
	kubernetes | kubernetes-*) say kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl ;;
	prometheus) say prometheus promtool ;;
	*) say "$1" ;;
	esac
}

# tool_bin TOOL: other versions of Kubernetes have a folder of their own, because their programs have the same names.
tool_bin() { case $1 in kubernetes-*) say "$BIN/$1" ;; *) say "$BIN" ;; esac; }

tool_current() {
	local program
	[[ "$(cat "$BIN/.$1.stamp" 2>/dev/null)" == "$(tool_fingerprint "$1")" ]] || return 1
	for program in $(tool_outputs "$1"); do [[ -x $(tool_bin "$1")/$program ]] || return 1; done
}

# list_packages TOOL…: downloads the modules, and lists each package once: at most so many are compiled.
list_packages() {
	local tool
	for tool in "$@"; do
		go list -C "$(tool_folder "$tool")" "$(tool_flags "$tool")" -deps -f '{{.ImportPath}} {{with .Module}}{{.Version}}{{end}}' "$(tool_packages "$tool")"
	done | sort -u >"$LOG_DIR/packages"
	: >"$LOG_DIR/compiled"
}

# build_tool TOOL STEP BEGAN: compiled packages and the time since BEGAN (in SECONDS) give the estimate on the live line.
build_tool() {
	local tool=$1 step=$2 began=$3 folder output ldflags="-s -w" version number total compiled left="" line
	folder=$(tool_folder "$tool")
	output=$(tool_bin "$tool")/
	mkdir -p "$output"
	if [[ $(tool_outputs "$tool") != *" "* ]]; then output+=$tool; fi
	if [[ $tool == kubernetes* ]]; then
		# Without a version in it, everything that parses the API server's version breaks.
		version=$(go list -C "$folder" -m -f '{{.Version}}' k8s.io/kubernetes)
		number=${version#v}
		for line in "gitVersion=$version" "gitMajor=${number%%.*}" "gitMinor=$(cut -d. -f2 <<<"$number")"; do
			ldflags+=" -X k8s.io/component-base/version.$line"
		done
	fi
	total=$(wc -l <"$LOG_DIR/packages")
	compiled=$(wc -l <"$LOG_DIR/compiled")
	note "$step:"
	go build -C "$folder" -v -trimpath "$(tool_flags "$tool")" -ldflags "$ldflags" -o "$output" "$(tool_packages "$tool")" 2>&1 |
		while IFS= read -r line; do
			printf '%s\n' "$line"
			printf '%s\n' "$line" >>"$LOG_DIR/compiled"
			compiled=$((compiled + 1))
			if ((compiled > 50)); then left=" about $(((SECONDS - began) * (total - compiled) / compiled / 60 + 1)) min left,"; fi
			note "$step: $compiled of $total packages,$left"
		done
	tool_fingerprint "$tool" >"$BIN/.$tool.stamp"
}

# build_tools TOOL…: those that are not current.
build_tools() {
	local tool wanted=() i=0 began
	mkdir -p "$BIN"
	for tool in "$@"; do
		if [[ ! -f $(tool_folder "$tool")/go.mod ]]; then die "there is no tool called $tool" "use one of: workload $(cd "$ROOT/hack/tools" && echo *)"; fi
		if ! tool_current "$tool"; then wanted+=("$tool"); fi
	done
	if ((${#wanted[@]} == 0)); then return; fi
	stage "modules of ${wanted[*]}" list_packages "${wanted[@]}"
	began=$SECONDS
	for tool in "${wanted[@]}"; do
		i=$((i + 1))
		stage "building $tool" build_tool "$tool" "($i of ${#wanted[@]})" "$began"
	done
}

cmd_build() {
	if ! have go; then die "the go command is missing" "install Go 1.26 or newer"; fi
	if (($# == 0)); then set -- workload etcd coredns "$KUBERNETES_TOOL"; fi
	build_tools "$@"
	say "programs in $BIN"
}

# make_image NAME PROGRAM USER: a docker-archive with one layer, which contains one static program, under the image's name: the process
# of the pause image is called pause, as elsewhere.
make_image() {
	local name=$1 program=$2 user=$3 work digest
	work=$(mktemp -d "$IMAGE_DIR/tmp.XXXXXX")
	mkdir "$work/layer"
	install -m 0755 "$BIN/$program" "$work/layer/$name"
	# Fixed times and owners: the digest changes only with the program.
	tar -C "$work/layer" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf "$work/layer.tar" "$name"
	digest=$(sha256sum "$work/layer.tar" | cut -d' ' -f1)
	printf '{"architecture":"%s","os":"linux","config":{"User":"%s","Entrypoint":["/%s"],"WorkingDir":"/"},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]},"created":"1970-01-01T00:00:00Z","history":[{"created":"1970-01-01T00:00:00Z","created_by":"hack/cluster"}]}' \
		"$(go env GOARCH)" "$user" "$name" "$digest" >"$work/config.json"
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
