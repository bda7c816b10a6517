# The control plane, and the add-ons that must run before a node is of use.

resource "aws_kms_key" "secrets" {
  description         = "Secrets of the EKS cluster ${var.cluster_name}"
  enable_key_rotation = true
}

# With the name that EKS writes to. Created here, so that it has a retention.
resource "aws_cloudwatch_log_group" "cluster" {
  name              = "/aws/eks/${var.cluster_name}/cluster"
  retention_in_days = var.log_retention_days
}

resource "aws_iam_role" "cluster" {
  name = "${var.cluster_name}-cluster"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "eks.amazonaws.com" }
      Action    = "sts:AssumeRole"
    }]
  })
}

resource "aws_iam_role_policy_attachment" "cluster" {
  role       = aws_iam_role.cluster.name
  policy_arn = "arn:${local.partition}:iam::aws:policy/AmazonEKSClusterPolicy"
}

resource "aws_iam_role_policy" "cluster" {
  name = "secrets"
  role = aws_iam_role.cluster.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect   = "Allow"
      Action   = ["kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:ListGrants"]
      Resource = [aws_kms_key.secrets.arn]
    }]
  })
}

resource "aws_eks_cluster" "this" {
  name                          = var.cluster_name
  version                       = var.kubernetes_version
  role_arn                      = aws_iam_role.cluster.arn
  bootstrap_self_managed_addons = false # EKS add-ons instead, below
  enabled_cluster_log_types     = ["api", "audit", "authenticator", "controllerManager", "scheduler"]

  access_config {
    authentication_mode                         = "API"
    bootstrap_cluster_creator_admin_permissions = true
  }

  encryption_config {
    resources = ["secrets"]
    provider {
      key_arn = aws_kms_key.secrets.arn
    }
  }

  # At the end of standard support EKS upgrades the cluster, instead of charging six times the price.
  upgrade_policy {
    support_type = "STANDARD"
  }

  vpc_config {
    subnet_ids              = [for subnet in aws_subnet.private : subnet.id]
    endpoint_private_access = true
    endpoint_public_access  = length(var.public_access_cidrs) > 0
    public_access_cidrs     = length(var.public_access_cidrs) > 0 ? var.public_access_cidrs : null
  }

  depends_on = [
    aws_cloudwatch_log_group.cluster,
    aws_iam_role_policy.cluster,
    aws_iam_role_policy_attachment.cluster,
  ]
}

# For workloads that use IAM roles for service accounts. Karpenter uses Pod Identity, which does not need it.
resource "aws_iam_openid_connect_provider" "this" {
  url            = aws_eks_cluster.this.identity[0].oidc[0].issuer
  client_id_list = ["sts.amazonaws.com"]
}

# They run on gated nodes too: the DaemonSets of vpc-cni and eks-pod-identity-agent tolerate every taint, and AWS does not publish
# kube-proxy's. They come before the nodes: a node is not Ready without a CNI.
resource "aws_eks_addon" "node" {
  for_each = toset(["eks-pod-identity-agent", "kube-proxy", "vpc-cni"])

  cluster_name = aws_eks_cluster.this.name
  addon_name   = each.key
}

# After the nodes: the add-on does not become active before its pods run.
resource "aws_eks_addon" "coredns" {
  cluster_name = aws_eks_cluster.this.name
  addon_name   = "coredns"
  configuration_values = jsonencode({
    nodeSelector = local.system_labels
    # With all three, CoreDNS never waits for a node that waits for DNS, wherever it runs. The first is the add-on's default, which this
    # list replaces.
    tolerations = [
      { key = "CriticalAddonsOnly", operator = "Exists" },
      { key = "node-ready/unverified", operator = "Exists" },
      { key = "node-ready/failed", operator = "Exists" },
    ]
  })

  depends_on = [aws_eks_node_group.system]
}
