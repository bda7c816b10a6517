//go:build tools

// Package karpenter pins the module that holds the CRDs of Karpenter on AWS beside the tool: the
// examples are applied with them. Nothing is built of it.
package karpenter

import _ "github.com/aws/karpenter-provider-aws/pkg/apis"
