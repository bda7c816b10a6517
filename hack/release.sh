#!/usr/bin/env bash
# What a release consists of, made from this checkout: the images (amd64, arm64), the chart's package, the manifests, an SBOM of
# each binary and the checksums. Everything bears the time of the commit, so that whoever builds it again gets the same bytes.
#
#   hack/release.sh artifacts DIR VERSION   chart, manifests, SBOMs and checksums; refused where VERSION is not the chart's
#   hack/release.sh index DIR INDEX         adds the chart in DIR to the index of the Helm repository on GitHub Pages
#   hack/release.sh dry-run                 these and the images, twice, into dist/; fails where the two differ
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

# helm package writes the time of the day into the archive: it is packed again.
chart() { # DIR
  local work package=kube-node-ready-$version.tgz
  work=$(mktemp -d)
  bin/tools/helm package chart --destination "$work" >/dev/null
  mkdir "$work/files"
  tar -xzmf "$work/$package" -C "$work/files"
  tar -C "$work/files" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=go=rX,u+rw -cf - kube-node-ready |
    gzip -n9 >"$1/$package"
  rm -rf "$work"
  cp hack/manifests/*.yaml "$1" # that they are current is a test's business
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
  GOOS=linux make --no-print-directory build BIN="$work/kube-node-ready" CONTROLLER="$work/kube-node-ready-controller" >/dev/null
  for name in kube-node-ready kube-node-ready-controller; do
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
  local arch
  for arch in amd64 arm64; do
    image "$1" kube-node-ready "$arch"
    image "$1" kube-node-ready-controller "$arch" --controller
  done
}

checksums() { (cd "$1" && find . -maxdepth 1 -type f ! -name SHA256SUMS -printf '%P\n' | LC_ALL=C sort | xargs sha256sum >SHA256SUMS); }

case $mode in
artifacts)
  if [ "${3:-}" != "$version" ]; then
    echo "the version to release is ${3:-not given}, and chart/Chart.yaml says $version" >&2
    exit 1
  fi
  mkdir -p "$2"
  chart "$2" && sboms "$2" && checksums "$2"
  ;;
index) index "$2" "$3" ;;
dry-run)
  rm -rf dist/1 dist/2
  for i in 1 2; do
    mkdir -p "dist/$i"
    images "$PWD/dist/$i"
    chart "dist/$i" && sboms "dist/$i" && checksums "dist/$i"
  done
  cat dist/1/SHA256SUMS
  diff dist/1/SHA256SUMS dist/2/SHA256SUMS || { echo "two builds differ" >&2; exit 1; }
  echo "two builds are the same, byte by byte"
  check_index dist/1 # after the comparison: an index has the time
  for file in dist/1/*-linux-*.tar; do
    printf 'image %s: %d bytes, %d compressed\n' "$(basename "$file" .tar)" "$(stat -c %s "$file")" "$(gzip -9c "$file" | wc -c)"
  done
  ;;
*) echo "usage: $0 artifacts DIR VERSION | index DIR INDEX | dry-run" >&2; exit 2 ;;
esac
