#!/usr/bin/env bash
# Checks hack/examples/eks-platform without an AWS account: its format, the versions that it names, and with the real AWS provider its
# arguments, its resources and its tests, for which nothing is created. Terraform's registry is not asked: the provider is built from its Go
# module, once. TERRAFORM names another terraform.
set -euo pipefail
cd "$(dirname "$0")/.."
terraform=${TERRAFORM:-terraform}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

die() {
  echo "platform-check: $*" >&2
  exit 1
}

# Whatever else is set up on this machine: no setting of the user's, only the provider that is built here, and a copy without tfvars.
for name in "${!TF_@}"; do unset "$name"; done
export TF_CLI_CONFIG_FILE=$scratch/terraform.rc TF_DATA_DIR=$scratch/data CHECKPOINT_DISABLE=1
cat >"$TF_CLI_CONFIG_FILE" <<END
provider_installation {
  dev_overrides {
    "hashicorp/aws" = "$scratch/provider"
  }
  direct {}
}
END
git ls-files -co --exclude-standard -- hack/examples/eks-platform hack/examples/karpenter | grep -v '\.tfvars' |
  tar -cf - -T - | tar -xf - -C "$scratch"
original=hack/examples/eks-platform example=$scratch/hack/examples/eks-platform

# named FILE SED-EXPRESSION: the version that a file names, which must be there.
named() {
  local version
  version=$(sed -nE "$2" "$1" | head -n 1)
  [ -n "$version" ] || die "$1 names no version ($2)"
  echo "$version"
}

# agree WHAT VERSION VERSION
agree() { [ "$2" = "$3" ] || die "$1: $original names $2, and this repository has $3"; }

required=$(named "$example/versions.tf" 's/^  required_version = ">= ([0-9.]+)"/\1/p')
version=$("$terraform" version 2>"$scratch/version.log" | sed -nE '1s/^Terraform v([0-9.]+).*/\1/p') ||
  die "$terraform does not run: install Terraform $required or newer, or set TERRAFORM. $(cat "$scratch/version.log")"
[ "$(printf '%s\n' "$required" "$version" | sort -V | head -n 1)" = "$required" ] ||
  die "$terraform is version ${version:-unknown}: install Terraform $required or newer, or set TERRAFORM"

"$terraform" fmt -check -diff -recursive "$example" || die "not formatted: terraform fmt -recursive $original"
agree "Kubernetes, which the end-to-end tests run on" \
  "$(named "$example/variables.tf" 's/^  default +=  *"(1\.[0-9]+)".*/\1/p')" "$(named hack/tools/kubernetes/go.mod 's/.*k8s.io\/kubernetes v(1\.[0-9]+)\..*/\1/p')"
karpenter=$(cd hack/tools/karpenter && go mod download github.com/aws/karpenter-provider-aws && go list -m -f '{{.Dir}}' github.com/aws/karpenter-provider-aws)
agree "The newest Kubernetes that Karpenter supports" "$(named "$example/variables.tf" 's/.*contains\(\[.*"([0-9.]+)"\], var.kubernetes_version\)/\1/p')" \
  "$(named "$karpenter/pkg/providers/version/version.go" 's/.*MaxK8sVersion += "([0-9.]+)"/\1/p')"
agree "Karpenter, whose CRDs the end-to-end tests install" \
  "$(named "$example/README.md" 's/.*karpenter\/karpenter --version ([0-9.]+).*/\1/p')" "$(named hack/tools/karpenter/go.mod 's/.*karpenter-provider-aws v([0-9.]+).*/\1/p')"
agree "The chart" "$(named "$example/README.md" 's/.*charts\/kube-node-ready --version ([0-9.]+).*/\1/p')" "$(named chart/Chart.yaml 's/^version: (.*)/\1/p')"

make --no-print-directory "$PWD/bin/tools/terraform-provider-aws"
mkdir "$scratch/provider"
ln -s "$PWD/bin/tools/terraform-provider-aws" "$scratch/provider/"
"$terraform" -chdir="$example" validate -no-color

# Every resource, and what each waits for: tests see neither a resource that they do not name nor depends_on.
"$terraform" -chdir="$example" graph | sed -nE 's/^  ("[^"]+")( ->.*)?( \[.*)?;$/\1\2/p' | tr -d '"' | sort >"$scratch/resources.txt"
diff -u "$original/tests/expected/resources.txt" "$scratch/resources.txt" >&2 ||
  die "the resources, or what they wait for, are others. If that is meant, write it into $original/tests/expected/resources.txt"

runs=$(cat "$example"/tests/*.tftest.hcl | grep -c '^run "')
"$terraform" -chdir="$example" test -no-color | tee "$scratch/test.log"
grep -qx "Success! $runs passed, 0 failed." "$scratch/test.log" || die "not all of the $runs runs of $original/tests have passed"
