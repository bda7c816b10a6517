#!/usr/bin/env bash
# What a release consists of, made from this checkout: the images (amd64, arm64), the chart's package, the manifests, the values of
# platforms, the kubectl plugin, an SBOM of each binary and the checksums. Everything has the time of the commit, so that another build gives
# the same bytes.
#
#   hack/release.sh artifacts DIR VERSION   all but the images; refused if VERSION is not the chart's, or has no date in CHANGELOG.md
#   hack/release.sh push DIR URL [OPTION…]  pushes the chart in DIR to an OCI registry and prints digest=DIGEST; options are helm push's
#   hack/release.sh index DIR INDEX         adds the chart in DIR to the index of the Helm repository on GitHub Pages
#   hack/release.sh build DIR               everything, and the images as archives
#   hack/release.sh dry-run                 that, twice, into dist/; fails if the two differ
#
# PLATFORMS=linux/ARCH builds plugin and images for one architecture only.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=${1:-}
version=$(sed -n 's/^version: //p' chart/Chart.yaml)
if ! grep -qx "appVersion: \"$version\"" chart/Chart.yaml; then
  echo "chart/Chart.yaml: version is $version, and appVersion is not the same" >&2
  exit 1
fi
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
BUILD_DATE=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
COMMIT_HASH=$(git rev-parse --short=12 HEAD)
export SOURCE_DATE_EPOCH BUILD_DATE COMMIT_HASH VERSION=$version

IMAGE=ghcr.io/imunhatep/kube-node-ready

# pack DIR ARCHIVE NAME…: the same files give the same archive.
pack() {
  tar -C "$1" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=go=rX,u+rw -cf - "${@:3}" | gzip -n9 >"$2"
}

# What Artifact Hub shows of this version: the images, and the items of its section in CHANGELOG.md.
annotations() {
  printf '  artifacthub.io/prerelease: "%s"\n' "$([[ $version == *-* ]] && echo true || echo false)"
  echo '  artifacthub.io/images: |'
  printf '    - {name: %s, image: "%s:%s", platforms: [linux/amd64, linux/arm64]}\n' \
    kube-node-ready "$IMAGE" "$version" kube-node-ready-controller "$IMAGE-controller" "$version"
  echo '  artifacthub.io/changes: |'
  awk -v section="## [$version]" '
    function flush() { if (text) print kind "\t" text; text = "" }
    /^## / { flush(); inside = index($0, section) == 1 }
    !inside { next }
    /^### / { flush(); kind = tolower($2) }
    /^- / { flush(); text = substr($0, 3) }
    /^  / { text = text " " substr($0, 3) }
    END { flush() }' CHANGELOG.md |
    jq -Rr 'split("\t") | "    - {kind: \(.[0]), description: \(.[1] | gsub("[*]{2}"; "") | tojson)}"' | grep .
}

# helm package writes the time of the day into the archive: it is packed again.
chart() { # DIR
  local work package=kube-node-ready-$version.tgz
  work=$(mktemp -d)
  cp -r chart "$work"
  [[ $(grep -E "^[a-z]" chart/Chart.yaml | tail -n 1) == annotations: ]] || { echo "chart/Chart.yaml: annotations must be last" >&2; exit 1; }
  annotations >>"$work/chart/Chart.yaml"
  bin/tools/helm package "$work/chart" --destination "$work" >/dev/null
  mkdir "$work/files"
  tar -xzmf "$work/$package" -C "$work/files"
  pack "$work/files" "$1/$package" kube-node-ready
  rm -rf "$work"
  cp hack/manifests/*.yaml "$1" # that they are current is a test's business
  local values name
  for values in hack/examples/*/values*.yaml; do
    name=${values#hack/examples/}
    name=${name/\/values/}
    cp "$values" "$1/values-$name"
  done
}

# The kubectl plugin, for the machines that people work on.
plugins() { # DIR
  local work platform program
  for platform in ${PLATFORMS:-linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64}; do
    work=$(mktemp -d)
    program=kubectl-node_ready
    if [[ $platform == windows/* ]]; then program+=.exe; fi
    GOOS=${platform%/*} GOARCH=${platform#*/} make --no-print-directory plugin PLUGIN="$work/$program" >/dev/null
    cp LICENSE "$work"
    pack "$work" "$1/kubectl-node_ready-${platform/\//-}.tar.gz" LICENSE "$program"
    rm -rf "$work"
  done
}

# helm push prints the digest to standard error.
push() { # DIR URL OPTION…
  bin/tools/helm push "$1/kube-node-ready-$version.tgz" "${@:2}" 2>&1 | tee /dev/stderr | sed -n 's/^Digest: /digest=/p' | grep .
}

# The Helm repository of all releases since 0.1.1. The package is a file of the GitHub release.
index() { # DIR INDEX
  local work
  work=$(mktemp -d)
  cp "$1/kube-node-ready-$version.tgz" "$work"
  bin/tools/helm repo index "$work" --merge "$2" --url "https://github.com/imunhatep/kube-node-ready/releases/download/v$version"
  cp "$work/index.yaml" "$2"
  rm -rf "$work"
}

# helm repo update shows this version, and what others were there.
check_index() { # DIR
  local digest line
  printf '{apiVersion: v1, entries: {kube-node-ready: [{apiVersion: v2, name: kube-node-ready, version: 0.5.0, urls: [former.tgz]}]}}' >"$1/index.yaml"
  index "$1" "$1/index.yaml"
  digest=$(sha256sum <"$1/kube-node-ready-$version.tgz")
  for line in "digest: ${digest%% *}" "version: $version" "version: 0.5.0" "- former.tgz"; do
    grep -q "^ *$line\$" "$1/index.yaml" || { echo "the index of the Helm repository has no line $line" >&2; exit 1; }
  done
}

# The modules that are linked into each binary, as CycloneDX: the Go linker has written them into it.
sboms() { # DIR
  local work name
  work=$(mktemp -d)
  GOOS=linux make --no-print-directory build plugin BIN="$work/kube-node-ready" CONTROLLER="$work/kube-node-ready-controller" \
    PLUGIN="$work/kubectl-node_ready" >/dev/null
  for name in kube-node-ready kube-node-ready-controller kubectl-node_ready; do
    go version -m "$work/$name" | awk '$1 == "dep" && $2 != "github.com/imunhatep/kube-node-ready" {print $2, $3}' |
      jq -Rn --arg name "$name" --arg version "$version" --arg time "$BUILD_DATE" '{
      bomFormat: "CycloneDX", specVersion: "1.5", version: 1,
      metadata: {timestamp: $time, component: {type: "application", name: $name, version: $version, licenses: [{license: {id: "AGPL-3.0-only"}}]}},
      components: [inputs | split(" ") | {type: "library", name: .[0], version: .[1], purl: "pkg:golang/\(.[0])@\(.[1])"}]}' >"$1/$name.cdx.json"
  done
  rm -rf "$work"
}

# A state folder of its own: the images are for no cluster.
image() { # DIR NAME ARCH OPTION…
  CLUSTER_DIR=$PWD/dist/work PLATFORM=linux/$3 OUT=$1/$2-linux-$3.tar hack/cluster/cluster image "${@:4}" "localhost/$2:$version"
}

images() { # DIR
  local platform
  for platform in ${PLATFORMS:-linux/amd64 linux/arm64}; do
    image "$1" kube-node-ready "${platform#*/}"
    image "$1" kube-node-ready-controller "${platform#*/}" --controller
  done
}

checksums() { (cd "$1" && find . -maxdepth 1 -type f ! -name SHA256SUMS -printf '%P\n' | LC_ALL=C sort | xargs sha256sum >SHA256SUMS); }

artifacts() { # DIR
  chart "$1"
  plugins "$1"
  sboms "$1"
  checksums "$1"
}

build() { # DIR
  mkdir -p "$1"
  images "$(realpath "$1")"
  artifacts "$1"
}

case $mode in
artifacts)
  if [ "${3:-}" != "$version" ]; then
    echo "the version to release is ${3:-not given}, and chart/Chart.yaml says $version" >&2
    exit 1
  fi
  if ! grep -qE "^## \[${version//./\\.}\] - [0-9]{4}-[0-9]{2}-[0-9]{2}\$" CHANGELOG.md; then
    echo "CHANGELOG.md: $version has no date" >&2
    exit 1
  fi
  mkdir -p "$2"
  artifacts "$2"
  ;;
push) push "${@:2}" ;;
index) index "$2" "$3" ;;
build) build "$2" ;;
dry-run)
  rm -rf dist/1 dist/2
  for i in 1 2; do build "dist/$i"; done
  cat dist/1/SHA256SUMS
  diff dist/1/SHA256SUMS dist/2/SHA256SUMS || { echo "two builds differ" >&2; exit 1; }
  echo "two builds are the same, byte by byte"
  check_index dist/1 # after the comparison: an index has the time
  for file in dist/1/*-linux-*.tar; do
    printf 'image %s: %d bytes, %d compressed\n' "$(basename "$file" .tar)" "$(stat -c %s "$file")" "$(gzip -9c "$file" | wc -c)"
  done
  ;;
*) echo "usage: $0 artifacts DIR VERSION | push DIR URL | index DIR INDEX | build DIR | dry-run" >&2; exit 2 ;;
esac
