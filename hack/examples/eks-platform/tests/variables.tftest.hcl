# What the variables refuse, and what they change.

mock_provider "aws" {
  mock_data "aws_availability_zones" {
    defaults = { names = ["us-west-1a", "us-west-1b"] }
  }
  mock_data "aws_partition" {
    defaults = { partition = "aws" }
  }
}

variables {
  region              = "us-west-1"
  zones               = ["us-west-1a", "us-west-1b", "us-west-1c"]
  public_access_cidrs = ["203.0.113.7/32"]
}

run "private_endpoint_only" {
  command = plan
  variables {
    public_access_cidrs = []
  }
  assert {
    condition     = !aws_eks_cluster.this.vpc_config[0].endpoint_public_access && aws_eks_cluster.this.vpc_config[0].endpoint_private_access
    error_message = "Without networks the endpoint is public."
  }
}

run "everybody" {
  command = plan
  variables {
    public_access_cidrs = ["0.0.0.0/0"]
  }
  expect_failures = [var.public_access_cidrs]
}

run "half_of_everybody" {
  command = plan
  variables {
    public_access_cidrs = ["128.0.0.0/1"]
  }
  expect_failures = [var.public_access_cidrs]
}

run "address_without_a_length" {
  command = plan
  variables {
    public_access_cidrs = ["203.0.113.7"]
  }
  expect_failures = [var.public_access_cidrs]
}

run "vpc_too_small" {
  command = plan
  variables {
    vpc_cidr = "10.0.0.0/24"
  }
  expect_failures = [var.vpc_cidr]
}

run "long_name" {
  command = plan
  variables {
    cluster_name = "a-name-with-more-characters-than-iam-allows"
  }
  expect_failures = [var.cluster_name]
}

run "two_zones" {
  command = plan
  variables {
    zones = ["us-west-1a", "us-west-1b"]
  }
  expect_failures = [var.zones]
}

run "a_region_with_two_zones" {
  command = plan
  variables {
    zones = []
  }
  expect_failures = [aws_vpc.this]
}

run "kubernetes_out_of_standard_support" {
  command = plan
  variables {
    kubernetes_version = "1.33"
  }
  expect_failures = [var.kubernetes_version]
}

run "kubernetes_newer_than_karpenter" {
  command = plan
  variables {
    kubernetes_version = "1.37"
  }
  expect_failures = [var.kubernetes_version]
}

run "name_that_is_a_yaml_word" {
  command = plan
  variables {
    cluster_name = "true"
  }
  assert {
    condition = [
      for class in [yamldecode(split("---\n", output.karpenter_manifests)[0])] :
      [class.spec.role, jsonencode(class.spec.securityGroupSelectorTerms)]
    ] == [["KarpenterNodeRole-true", "[{\"tags\":{\"karpenter.sh/discovery\":\"true\"}}]"]]
    error_message = "The name is a boolean in Karpenter's objects: ${output.karpenter_manifests}"
  }
}
