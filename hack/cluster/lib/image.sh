# shellcheck shell=bash
# The images of agent and controller, built from the Dockerfile.

# buildah runs in a mount namespace, so that its mounts end with it.
build_with() {
	unshare --mount --propagation private -- "${CLEAN[@]}" CONTAINERS_REGISTRIES_CONF="$BUILD_DIR/registries.conf" TMPDIR="$BUILD_DIR/tmp" \
		buildah --root "$BUILD_DIR/storage" --runroot "$BUILD_DIR/run" --storage-driver "$BUILD_DRIVER" "$@"
}

# make_base: a base image with only a shell. The host's Go is mounted into it during the build; the real base,
# docker.io/library/golang, contains Go.
make_base() {
	local container root applet
	container=$(build_with from scratch)
	root="$BUILD_DIR/base"
	rm -rf "$root"
	mkdir -p "$root"/{bin,tmp,usr/local/go,go/pkg/mod,root,etc/ssl/certs}
	chmod 1777 "$root/tmp"
	install -m 0755 "$(command -v busybox)" "$root/bin/busybox"
	for applet in $(busybox --list | grep -vx busybox); do ln -sf busybox "$root/bin/$applet"; done
	printf 'root:x:0:0:root:/root:/bin/sh\n' >"$root/etc/passwd"
	cat /etc/ssl/certs/ca-certificates.crt >"$root/etc/ssl/certs/ca-certificates.crt" 2>/dev/null || true # or empty
	build_with copy "$container" "$root" /
	build_with config --env PATH=/usr/local/go/bin:/bin --env GOPATH=/go --env GOTOOLCHAIN=local --env GOFLAGS= "$container"
	build_with commit --rm "$container" "$BASE_IMAGE"
	rm -rf "$root"
}

# build_twice ARG…: once more where buildah has lost a race while it starts the first RUN: fcntl(2) refuses to seal its copy of
# itself (EBUSY) while the kernel still has a page of it mapped for writing.
build_twice() {
	local log="$BUILD_DIR/log" status=0
	build_with bud "$@" 2>&1 | tee "$log" || status=$?
	if ((status != 0)) && grep -q 'sealing memfd copy: Device or resource busy' "$log"; then
		note "(go build, once more)"
		status=0
		build_with bud "$@" || status=$?
	fi
	return "$status"
}

build_image() {
	local tag=$1 args=() cache
	BUILD_DRIVER=overlay
	BUILD_DIR="$CLUSTER_DIR/cache/buildah"
	# Named after make_base, so that a change of it makes a new image.
	BASE_IMAGE=localhost/golang:host-$(declare -f make_base | sha256sum | cut -c1-8)
	mkdir -p "$BUILD_DIR/tmp" "$IMAGE_DIR"
	if [[ $(stat -f -c %T "$BUILD_DIR") == overlayfs ]]; then BUILD_DRIVER=vfs; fi
	printf 'unqualified-search-registries = []\n' >"$BUILD_DIR/registries.conf"
	printf '{"default": [{"type": "insecureAcceptAnything"}]}\n' >"$BUILD_DIR/policy.json"
	note "(modules)"
	# The build has no network: modules are downloaded here, with the host's Go settings.
	(cd "$ROOT" && go mod download)
	if [[ $TARGET == controller ]]; then (cd "$ROOT/controller" && go mod download); fi
	if ! build_with inspect --type image "$BASE_IMAGE" >/dev/null 2>&1; then
		note "(base image, once)"
		make_base
	fi
	note "(go build)"
	cache="$(go env GOCACHE)"
	args=(--isolation chroot --pull-never --signature-policy "$BUILD_DIR/policy.json" --layers=false
		--build-arg "BASE=$BASE_IMAGE" --build-arg "VERSION=$VERSION" --build-arg "COMMIT_HASH=$COMMIT_HASH" --build-arg "BUILD_DATE=$BUILD_DATE"
		--volume "$(go env GOROOT):/usr/local/go:ro" --volume "$(go env GOMODCACHE):/go/pkg/mod:ro" --volume "$cache:/root/.cache/go-build"
		--tag "$tag" --file "$ROOT/Dockerfile")
	if [[ -n $TARGET ]]; then args+=(--target "$TARGET"); fi
	if [[ -n ${PLATFORM:-} ]]; then args+=(--platform "$PLATFORM" --build-arg "BUILDPLATFORM=linux/$(go env GOARCH)"); fi
	# The time of each file and of the image: the same source gives the same digest (reproducible-builds.org).
	if [[ -n ${SOURCE_DATE_EPOCH:-} ]]; then args+=(--timestamp "$SOURCE_DATE_EPOCH"); fi
	build_twice "${args[@]}" "$ROOT"
	rm -f "$OUT.new"
	build_with push --signature-policy "$BUILD_DIR/policy.json" "$tag" "docker-archive:$OUT.new:$tag"
	mv "$OUT.new" "$OUT"
	# Each build leaves the previous image untagged.
	build_with rmi --prune >/dev/null || true
}

# cmd_image [--controller] [TAG]: environment VERSION, COMMIT_HASH, BUILD_DATE, SOURCE_DATE_EPOCH, PLATFORM (linux/arm64),
# OUT (the tar to write).
cmd_image() {
	local name=kube-node-ready tag
	TARGET=""
	if [[ ${1:-} == --controller ]]; then
		name=kube-node-ready-controller TARGET=controller
		shift
	fi
	tag=${1:-localhost/$name:dev}
	if [[ ! -f $ROOT/Dockerfile || ! -f $ROOT/main.go ]]; then die "there is no Dockerfile or no main.go in $ROOT"; fi
	if ((EUID != 0)); then die "buildah needs root here" "docker build . or podman build . work without"; fi
	# shellcheck disable=SC2086
	ensure_programs $IMAGE_PROGRAMS
	VERSION=${VERSION:-dev}
	COMMIT_HASH=${COMMIT_HASH:-$(git -C "$ROOT" rev-parse --short=12 HEAD 2>/dev/null || printf unknown)}
	BUILD_DATE=${BUILD_DATE:-$(date -u +%Y-%m-%dT%H:%M:%SZ)}
	# Images in $IMAGE_DIR are imported on every new node: none of another architecture, therefore.
	if [[ -n ${PLATFORM:-} && $PLATFORM != "linux/$(go env GOARCH)" ]]; then OUT=${OUT:-$CLUSTER_DIR/cache/$name-${PLATFORM//\//-}.tar}; fi
	OUT=$(realpath -m "${OUT:-$IMAGE_DIR/$name.tar}")
	mkdir -p "$(dirname "$OUT")"
	stage "image $tag from the Dockerfile" build_image "$tag"
	if [[ -n ${PLATFORM:-} && $PLATFORM != "linux/$(go env GOARCH)" ]]; then
		say "image of $PLATFORM in $OUT"
		return
	fi
	if [[ -n $(node_names) ]]; then stage "image onto the nodes" load_image "$OUT"; fi
}

load_image() {
	local name
	for name in $(node_names); do
		if init_pid "$name" >/dev/null; then ctr_on "$name" images import "$1"; fi
	done
}

# cmd_load FILE.tar…: nodes that are added later import them, too.
cmd_load() {
	local file
	for file in "$@"; do
		if [[ ! -f $file ]]; then set --; fi
	done
	if (($# == 0)); then die "load needs image archives (docker save, podman save, buildah push docker-archive:)" "hack/cluster/cluster load FILE.tar"; fi
	require_sandbox control
	for file in "$@"; do
		file=$(readlink -f "$file")
		if [[ $(dirname "$file") != "$IMAGE_DIR" ]]; then cp --reflink=auto "$file" "$IMAGE_DIR/"; fi
		stage "image $(basename "$file") onto the nodes" load_image "$file"
	done
}
