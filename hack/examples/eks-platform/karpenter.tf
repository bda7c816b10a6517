# What Karpenter needs in AWS. Karpenter itself is installed by Helm, its node class and NodePools are an output for kubectl.

locals {
  # Tags that Karpenter gives to what it makes, and by which it may touch only that. It also tags them with the NodePool or node class.
  owned        = { "kubernetes.io/cluster/${var.cluster_name}" = "owned" }
  owned_named  = merge(local.owned, { "eks:eks-cluster-name" = var.cluster_name })
  owned_region = { "topology.kubernetes.io/region" = var.region }
  when_created = { for tag, value in local.owned_named : "aws:RequestTag/${tag}" => value }
  when_exists  = { for tag, value in local.owned : "aws:ResourceTag/${tag}" => value }

  profile_created = merge(local.when_created, { for tag, value in local.owned_region : "aws:RequestTag/${tag}" => value })
  profile_exists  = merge(local.when_exists, { for tag, value in local.owned_region : "aws:ResourceTag/${tag}" => value })

  ec2      = "arn:${local.partition}:ec2:${var.region}:${local.account_id}"
  profiles = "arn:${local.partition}:iam::${local.account_id}:instance-profile/*"

  # By IAM's limits, all of them together may have 10,240 characters.
  karpenter_policies = {
    instances = [
      { # Launch any image, but only into the private subnets. The default security group, which has no rules, is what EC2 may take in
        # the dry run by which Karpenter tries its rights.
        Effect = "Allow"
        Action = ["ec2:CreateFleet", "ec2:RunInstances"]
        Resource = concat([for subnet in aws_subnet.private : subnet.arn], [
          "arn:${local.partition}:ec2:${var.region}::image/*",
          "arn:${local.partition}:ec2:${var.region}::snapshot/*",
          "${local.ec2}:security-group/${local.security_group_id}",
          aws_default_security_group.this.arn,
        ])
      },
      { # From launch templates of its own.
        Effect   = "Allow"
        Action   = ["ec2:CreateFleet", "ec2:RunInstances"]
        Resource = ["${local.ec2}:launch-template/*"]
        Condition = {
          StringEquals = local.when_exists
          StringLike   = { "aws:ResourceTag/karpenter.sh/nodepool" = "*" }
        }
      },
      { # What is made must have the tags.
        Effect   = "Allow"
        Action   = ["ec2:CreateFleet", "ec2:CreateLaunchTemplate", "ec2:RunInstances"]
        Resource = local.launched
        Condition = {
          StringEquals = local.when_created
          StringLike   = { "aws:RequestTag/karpenter.sh/nodepool" = "*" }
        }
      },
      { # Tags are given when something is made …
        Effect   = "Allow"
        Action   = ["ec2:CreateTags"]
        Resource = local.launched
        Condition = {
          StringEquals = merge(local.when_created, { "ec2:CreateAction" = ["CreateFleet", "CreateLaunchTemplate", "RunInstances"] })
          StringLike   = { "aws:RequestTag/karpenter.sh/nodepool" = "*" }
        }
      },
      { # … and once more when the instance has become a node.
        Effect   = "Allow"
        Action   = ["ec2:CreateTags"]
        Resource = ["${local.ec2}:instance/*"]
        Condition = {
          StringEquals                = local.when_exists
          StringLike                  = { "aws:ResourceTag/karpenter.sh/nodepool" = "*" }
          StringEqualsIfExists        = { "aws:RequestTag/eks:eks-cluster-name" = var.cluster_name }
          "ForAllValues:StringEquals" = { "aws:TagKeys" = ["Name", "eks:eks-cluster-name", "karpenter.sh/nodeclaim"] }
        }
      },
      {
        Effect   = "Allow"
        Action   = ["ec2:DeleteLaunchTemplate", "ec2:TerminateInstances"]
        Resource = ["${local.ec2}:instance/*", "${local.ec2}:launch-template/*"]
        Condition = {
          StringEquals = local.when_exists
          StringLike   = { "aws:ResourceTag/karpenter.sh/nodepool" = "*" }
        }
      },
    ]

    profiles = [
      {
        Effect    = "Allow"
        Action    = ["iam:PassRole"]
        Resource  = [aws_iam_role.node["karpenter"].arn]
        Condition = { StringEquals = { "iam:PassedToService" = "ec2.amazonaws.com" } }
      },
      {
        Effect   = "Allow"
        Action   = ["iam:CreateInstanceProfile"]
        Resource = [local.profiles]
        Condition = {
          StringEquals = local.profile_created
          StringLike   = { "aws:RequestTag/karpenter.k8s.aws/ec2nodeclass" = "*" }
        }
      },
      {
        Effect   = "Allow"
        Action   = ["iam:TagInstanceProfile"]
        Resource = [local.profiles]
        Condition = {
          StringEquals = merge(local.profile_created, local.profile_exists)
          StringLike   = { for kind in ["Request", "Resource"] : "aws:${kind}Tag/karpenter.k8s.aws/ec2nodeclass" => "*" }
        }
      },
      {
        Effect   = "Allow"
        Action   = ["iam:AddRoleToInstanceProfile", "iam:DeleteInstanceProfile", "iam:RemoveRoleFromInstanceProfile"]
        Resource = [local.profiles]
        Condition = {
          StringEquals = local.profile_exists
          StringLike   = { "aws:ResourceTag/karpenter.k8s.aws/ec2nodeclass" = "*" }
        }
      },
      {
        Effect   = "Allow"
        Action   = ["iam:GetInstanceProfile"]
        Resource = [local.profiles]
      },
    ]

    reads = [
      { # AWS knows no narrower resource for these.
        Effect = "Allow"
        Action = [
          "ec2:DescribeCapacityReservations",
          "ec2:DescribeImages",
          "ec2:DescribeInstanceStatus",
          "ec2:DescribeInstanceTypeOfferings",
          "ec2:DescribeInstanceTypes",
          "ec2:DescribeInstances",
          "ec2:DescribeLaunchTemplates",
          "ec2:DescribePlacementGroups",
          "ec2:DescribeSecurityGroups",
          "ec2:DescribeSpotPriceHistory",
          "ec2:DescribeSubnets",
        ]
        Resource  = ["*"]
        Condition = { StringEquals = { "aws:RequestedRegion" = var.region } }
      },
      { # Nor for these, which are not of the region.
        Effect   = "Allow"
        Action   = ["iam:ListInstanceProfiles", "pricing:GetProducts"]
        Resource = ["*"]
      },
      { # The image ids of Amazon Linux. For Bottlerocket add parameter/aws/service/bottlerocket/*.
        Effect   = "Allow"
        Action   = ["ssm:GetParameter"]
        Resource = ["arn:${local.partition}:ssm:${var.region}::parameter/aws/service/eks/optimized-ami/*"]
      },
      {
        Effect   = "Allow"
        Action   = ["eks:DescribeCluster"]
        Resource = [aws_eks_cluster.this.arn]
      },
      {
        Effect   = "Allow"
        Action   = ["sqs:DeleteMessage", "sqs:GetQueueUrl", "sqs:ReceiveMessage"]
        Resource = [aws_sqs_queue.interruption.arn]
      },
    ]
  }

  launched = [
    for kind in ["fleet", "instance", "launch-template", "network-interface", "spot-instances-request", "volume"] : "${local.ec2}:${kind}/*"
  ]

  security_group_id = aws_eks_cluster.this.vpc_config[0].cluster_security_group_id

  # What ends or moves instances, so that Karpenter drains them before.
  interruptions = {
    capacity-reservation = { source = "aws.ec2", detail-type = "EC2 Capacity Reservation Instance Interruption Warning" }
    health               = { source = "aws.health", detail-type = "AWS Health Event" }
    instance-state       = { source = "aws.ec2", detail-type = "EC2 Instance State-change Notification" }
    rebalance            = { source = "aws.ec2", detail-type = "EC2 Instance Rebalance Recommendation" }
    spot-interruption    = { source = "aws.ec2", detail-type = "EC2 Spot Instance Interruption Warning" }
  }

  # The node class and NodePools of ../karpenter, with the role, tags and zones of this cluster.
  node_class      = yamldecode(file("${path.module}/../karpenter/ec2nodeclass.yaml"))
  node_class_tags = { "karpenter.sh/discovery" = var.cluster_name }
  node_pools      = [for object in split("\n---\n", file("${path.module}/../karpenter/nodepools.yaml")) : yamldecode(object)]
  karpenter_objects = concat(
    [merge(local.node_class, { spec = merge(local.node_class.spec,
      { role = aws_iam_role.node["karpenter"].name },
      { for field in ["securityGroupSelectorTerms", "subnetSelectorTerms"] : field => [
        for term in local.node_class.spec[field] : { tags = merge(term.tags, local.node_class_tags) }
      ] },
    ) })],
    [for pool in local.node_pools : merge(pool, { spec = merge(pool.spec, { template = merge(pool.spec.template, {
      spec = merge(pool.spec.template.spec, { requirements = [
        for it in pool.spec.template.spec.requirements :
        merge(it, { for field in ["values"] : field => local.zones if it.key == "topology.kubernetes.io/zone" })
      ] })
    }) }) })],
  )
}

resource "aws_iam_role" "karpenter" {
  name = "${var.cluster_name}-karpenter-controller"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "pods.eks.amazonaws.com" }
      Action    = ["sts:AssumeRole", "sts:TagSession"]
      Condition = {
        StringEquals = {
          "aws:RequestTag/eks-cluster-name"           = var.cluster_name
          "aws:RequestTag/kubernetes-namespace"       = "kube-system"
          "aws:RequestTag/kubernetes-service-account" = "karpenter"
        }
      }
    }]
  })
}

resource "aws_iam_role_policy" "karpenter" {
  for_each = local.karpenter_policies

  name   = each.key
  role   = aws_iam_role.karpenter.id
  policy = jsonencode({ Version = "2012-10-17", Statement = each.value })
}

resource "aws_eks_pod_identity_association" "karpenter" {
  cluster_name    = aws_eks_cluster.this.name
  namespace       = "kube-system"
  service_account = "karpenter"
  role_arn        = aws_iam_role.karpenter.arn
}

# Lets Karpenter's nodes join.
resource "aws_eks_access_entry" "karpenter_node" {
  cluster_name  = aws_eks_cluster.this.name
  principal_arn = aws_iam_role.node["karpenter"].arn
  type          = "EC2_LINUX"
}

# EKS makes this group. Nodes of Karpenter use it as the system nodes do, and so reach them and the control plane.
resource "aws_ec2_tag" "discovery" {
  resource_id = local.security_group_id
  key         = "karpenter.sh/discovery"
  value       = var.cluster_name
}

resource "aws_sqs_queue" "interruption" {
  name                      = "${var.cluster_name}-karpenter"
  message_retention_seconds = 300
  sqs_managed_sse_enabled   = true
}

resource "aws_sqs_queue_policy" "interruption" {
  queue_url = aws_sqs_queue.interruption.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect    = "Allow"
        Principal = { Service = "events.amazonaws.com" }
        Action    = "sqs:SendMessage"
        Resource  = aws_sqs_queue.interruption.arn
        Condition = { ArnEquals = { "aws:SourceArn" = [for rule in aws_cloudwatch_event_rule.interruption : rule.arn] } }
      },
      {
        Effect    = "Deny"
        Principal = "*"
        Action    = "sqs:*"
        Resource  = aws_sqs_queue.interruption.arn
        Condition = { Bool = { "aws:SecureTransport" = "false" } }
      },
    ]
  })
}

resource "aws_cloudwatch_event_rule" "interruption" {
  for_each = local.interruptions

  name          = "${var.cluster_name}-${each.key}"
  event_pattern = jsonencode({ for key, value in each.value : key => [value] })
}

resource "aws_cloudwatch_event_target" "interruption" {
  for_each = aws_cloudwatch_event_rule.interruption

  rule = each.value.name
  arn  = aws_sqs_queue.interruption.arn
}
