#!/usr/bin/env bash
# build.sh BINARY builds the pinned AWS provider with the services that hack/examples/eks-platform uses and no others: all 260 of them take
# 30 minutes and 12 GB of memory. Resources, data sources and their checks are the provider's own. Only two of its generated lists are cut:
# the service packages, and the clients of AWS' SDK.
set -euo pipefail
binary=$(realpath -m "$1")
cd "$(dirname "$0")"
module=github.com/hashicorp/terraform-provider-aws
# What the example uses, and what that needs in turn: the compiler names what is missing.
packages="ec2 eks events iam kms logs meta sqs sts"
clients="account cloudwatchlogs ec2 eks eventbridge iam kms organizations s3 sqs sts"

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT

echo "building the AWS provider $(go list -m -f '{{.Version}}' $module) with the services $packages"
go mod download $module
cp -r --no-preserve=mode "$(go list -m -f '{{.Dir}}' $module)"/{go.mod,go.sum,main.go,internal,names,version} "$copy"

# keep FILE IMPORT-PREFIX NAMES: drops the imports below the prefix except these, and the line or the function of each.
keep() {
  awk -v prefix="$2" -v names="$3" '
    BEGIN { count = split(names, list, " "); for (i = 1; i <= count; i++) keep[list[i]] = 1 }
    index($0, "\"" prefix) { name = $0; sub(".*/", "", name); sub("\"", "", name); if (!(name in keep)) next }
    /^\t\t[a-z0-9]+\.ServicePackage\(ctx\),$/ { name = $1; sub("[.].*", "", name); if (!(name in keep)) next }
    /^func \(c \*AWSClient\) / { name = $0; sub(".*[*]", "", name); sub("[.]Client.*", "", name); dropped = !(name in keep) }
    !dropped { print }
    /^}$/ { dropped = 0 }
  ' "$copy/$1" >"$copy/kept"
  mv "$copy/kept" "$copy/$1"
}
keep internal/provider/sdkv2/service_packages_gen.go $module/internal/service/ "$packages"
keep internal/conns/awsclient_gen.go github.com/aws/aws-sdk-go-v2/service/ "$clients"

# Two packages at a time, whatever the machine has: ec2 alone takes gigabytes.
cd "$copy"
total=$(go list -deps . | wc -l)
CGO_ENABLED=0 go build -p 2 -v -trimpath -ldflags "-s -w" -o "$binary" . 2>&1 |
  awk -v total="$total" '!/^[A-Za-z0-9.\/_~-]+$/ { print } ++n % 50 == 0 { printf "  %d packages of at most %d\n", n, total; fflush() }'
