#!/usr/bin/env bash
# Checks hack/examples/eks-platform without an AWS account: its format, the versions that it names, and with the real AWS provider its
# arguments and its tests, for which nothing is created. Terraform's registry is not asked: the provider is built from its Go module, once.
# TERRAFORM names another terraform.
set -euo pipefail
cd "$(dirname "$0")/.."
example=hack/examples/eks-platform
terraform=${TERRAFORM:-terraform}
settings=$(mktemp -d)
trap 'rm -rf "$settings"' EXIT
# Whatever else is set up on this machine: only the provider that is built here, and nothing is left in the example's folder.
export TF_CLI_CONFIG_FILE=$settings/terraform.rc TF_DATA_DIR=$settings/data CHECKPOINT_DISABLE=1
cat >"$TF_CLI_CONFIG_FILE" <<END
provider_installation {
  dev_overrides {
    "hashicorp/aws" = "$settings/provider"
  }
  direct {}
}
END

die() {
  echo "platform-check: $*" >&2
  exit 1
}

# named FILE SED-EXPRESSION: the version that a file names, which must be there.
named() {
  local version
  version=$(sed -nE "$2" "$1" | head -n 1)
  [ -n "$version" ] || die "$1 names no version ($2)"
  echo "$version"
}

# agree WHAT VERSION VERSION
agree() { [ "$2" = "$3" ] || die "$1: $example names $2, and this repository has $3"; }

command -v "$terraform" >/dev/null || die "terraform is missing: install version 1.9 or newer, or set TERRAFORM"
"$terraform" fmt -check -diff -recursive "$example" || die "not formatted: terraform fmt -recursive $example"
agree "Kubernetes, which the end-to-end tests run on" \
  "$(named $example/variables.tf 's/^  default +=  *"(1\.[0-9]+)".*/\1/p')" "$(named hack/tools/kubernetes/go.mod 's/.*k8s.io\/kubernetes v(1\.[0-9]+)\..*/\1/p')"
agree "Karpenter, whose CRDs the end-to-end tests install" \
  "$(named $example/README.md 's/.*karpenter\/karpenter --version ([0-9.]+).*/\1/p')" "$(named hack/tools/karpenter/go.mod 's/.*karpenter-provider-aws v([0-9.]+).*/\1/p')"
agree "The chart" "$(named $example/README.md 's/.*charts\/kube-node-ready --version ([0-9.]+).*/\1/p')" "$(named chart/Chart.yaml 's/^version: (.*)/\1/p')"

nice -n 5 hack/tools/terraform-provider-aws/build.sh
mkdir "$settings/provider"
ln -s "$PWD/bin/tools/terraform-provider-aws" "$settings/provider/"
"$terraform" -chdir="$example" validate
"$terraform" -chdir="$example" test
