# The roles of nodes, and the system node group: the nodes that exist before Karpenter. They have no startup taint, so CoreDNS and
# Karpenter can always run.

locals {
  system_labels = { "node-role/system" = "true" }
  # Two roles, because EKS makes the access entry for the role of a managed node group itself, and deletes it with the group.
  node_roles = {
    system    = "${var.cluster_name}-system-node"
    karpenter = "KarpenterNodeRole-${var.cluster_name}"
  }
  # The last one opens a shell on a node through Session Manager: for a node that fails its checks there may be no other way in.
  node_policies = [
    "AmazonEKSWorkerNodePolicy",
    "AmazonEKS_CNI_Policy",
    "AmazonEC2ContainerRegistryPullOnly",
    "AmazonSSMManagedInstanceCore",
  ]
}

resource "aws_iam_role" "node" {
  for_each = local.node_roles

  name = each.value
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "ec2.amazonaws.com" }
      Action    = "sts:AssumeRole"
    }]
  })
}

resource "aws_iam_role_policy_attachment" "node" {
  for_each = { for pair in setproduct(keys(local.node_roles), local.node_policies) : join("/", pair) => pair }

  role       = aws_iam_role.node[each.value[0]].name
  policy_arn = "arn:${local.partition}:iam::aws:policy/${each.value[1]}"
}

resource "aws_launch_template" "system" {
  name                   = "${var.cluster_name}-system"
  update_default_version = true

  # IMDSv2 only, and not reachable from pods (hop limit 1).
  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  block_device_mappings {
    device_name = "/dev/xvda"
    ebs {
      volume_type           = "gp3"
      volume_size           = 30
      encrypted             = true
      delete_on_termination = true
    }
  }

  dynamic "tag_specifications" {
    for_each = ["instance", "volume"]
    content {
      resource_type = tag_specifications.value
      tags          = merge(var.tags, { Name = "${var.cluster_name}-system" })
    }
  }
}

resource "aws_eks_node_group" "system" {
  cluster_name    = aws_eks_cluster.this.name
  node_group_name = "system"
  node_role_arn   = aws_iam_role.node["system"].arn
  subnet_ids      = [for subnet in aws_subnet.private : subnet.id]
  version         = var.kubernetes_version
  ami_type        = "AL2023_ARM_64_STANDARD"
  capacity_type   = "ON_DEMAND"
  instance_types  = ["t4g.medium"]
  labels          = local.system_labels

  scaling_config {
    min_size     = 1
    max_size     = 3
    desired_size = 2
  }

  update_config {
    max_unavailable = 1
  }

  launch_template {
    id      = aws_launch_template.system.id
    version = aws_launch_template.system.latest_version
  }

  # Keeps workloads away, so that each of them runs on a gated node. CoreDNS and Karpenter tolerate it. Never put the startup taint here.
  taint {
    key    = "CriticalAddonsOnly"
    value  = "true"
    effect = "NO_SCHEDULE"
  }

  # Without a route to the internet a node cannot pull its images, and without its policies it cannot join.
  depends_on = [
    aws_eks_addon.node,
    aws_iam_role_policy_attachment.node,
    aws_route_table.private,
    aws_route_table_association.private,
    aws_route_table_association.public,
    aws_vpc_endpoint.s3,
  ]
}
