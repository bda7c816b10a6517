# A VPC over three zones. Public subnets hold load balancers and NAT gateways, private subnets nodes and pods, data subnets databases.

data "aws_availability_zones" "available" {
  state = "available"
  # In these zones EKS cannot create a control plane.
  exclude_zone_ids = ["use1-az3", "usw1-az2", "cac1-az3"]

  filter {
    name   = "opt-in-status" # no local zones
    values = ["opt-in-not-required"]
  }
}

locals {
  zones = length(var.zones) == 3 ? var.zones : slice(
    sort(data.aws_availability_zones.available.names), 0, min(3, length(data.aws_availability_zones.available.names))
  )
  # Sixteen parts of the VPC, by number: 0 to 2 are public, 3 to 5 private, 6 to 8 data, the rest is free. With 10.0.0.0/16 part 1 is
  # 10.0.16.0/20.
  parts = [for part in range(16) : cidrsubnet(var.vpc_cidr, 4, part)]
  subnets = {
    for tier, first in { public = 0, private = 3, data = 6 } :
    tier => { for i, zone in local.zones : zone => local.parts[first + i] }
  }
}

resource "aws_vpc" "this" {
  cidr_block           = var.vpc_cidr
  enable_dns_support   = true
  enable_dns_hostnames = true # nodes of EKS need it
  tags                 = { Name = var.cluster_name }

  lifecycle {
    precondition {
      condition     = length(local.zones) == 3
      error_message = "The region has fewer than three zones that EKS supports. Choose another region."
    }
  }
}

# Nothing uses the default security group: it has no rules.
resource "aws_default_security_group" "this" {
  vpc_id = aws_vpc.this.id
  tags   = { Name = "${var.cluster_name}-default-unused" }
}

resource "aws_subnet" "public" {
  for_each = local.subnets.public

  vpc_id            = aws_vpc.this.id
  availability_zone = each.key
  cidr_block        = each.value
  tags              = { Name = "${var.cluster_name}-public-${each.key}", "kubernetes.io/role/elb" = "1" }
}

resource "aws_subnet" "private" {
  for_each = local.subnets.private

  vpc_id            = aws_vpc.this.id
  availability_zone = each.key
  cidr_block        = each.value
  tags = {
    Name                              = "${var.cluster_name}-private-${each.key}"
    "kubernetes.io/role/internal-elb" = "1"
    "karpenter.sh/discovery"          = var.cluster_name
  }
}

resource "aws_subnet" "data" {
  for_each = local.subnets.data

  vpc_id            = aws_vpc.this.id
  availability_zone = each.key
  cidr_block        = each.value
  tags              = { Name = "${var.cluster_name}-data-${each.key}" }
}

resource "aws_internet_gateway" "this" {
  vpc_id = aws_vpc.this.id
  tags   = { Name = var.cluster_name }
}

# One NAT gateway a zone: a zone that fails takes no other with it, and no traffic to the internet crosses zones.
resource "aws_eip" "nat" {
  for_each = aws_subnet.public

  domain     = "vpc"
  tags       = { Name = "${var.cluster_name}-nat-${each.key}" }
  depends_on = [aws_internet_gateway.this]
}

resource "aws_nat_gateway" "this" {
  for_each = aws_subnet.public

  subnet_id     = each.value.id
  allocation_id = aws_eip.nat[each.key].allocation_id
  tags          = { Name = "${var.cluster_name}-${each.key}" }
  depends_on    = [aws_internet_gateway.this]
}

resource "aws_route_table" "public" {
  vpc_id = aws_vpc.this.id
  tags   = { Name = "${var.cluster_name}-public" }

  route {
    cidr_block = "0.0.0.0/0"
    gateway_id = aws_internet_gateway.this.id
  }
}

resource "aws_route_table" "private" {
  for_each = aws_nat_gateway.this

  vpc_id = aws_vpc.this.id
  tags   = { Name = "${var.cluster_name}-private-${each.key}" }

  route {
    cidr_block     = "0.0.0.0/0"
    nat_gateway_id = each.value.id
  }
}

# Only the VPC itself is reachable from the data subnets, and only from the VPC they are reachable.
resource "aws_route_table" "data" {
  vpc_id = aws_vpc.this.id
  route  = []
  tags   = { Name = "${var.cluster_name}-data" }
}

resource "aws_route_table_association" "public" {
  for_each = aws_subnet.public

  subnet_id      = each.value.id
  route_table_id = aws_route_table.public.id
}

resource "aws_route_table_association" "private" {
  for_each = aws_subnet.private

  subnet_id      = each.value.id
  route_table_id = aws_route_table.private[each.key].id
}

resource "aws_route_table_association" "data" {
  for_each = aws_subnet.data

  subnet_id      = each.value.id
  route_table_id = aws_route_table.data.id
}

# Costs nothing, and the layers of images in ECR do not pass the NAT gateways.
resource "aws_vpc_endpoint" "s3" {
  vpc_id            = aws_vpc.this.id
  service_name      = "com.amazonaws.${var.region}.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = [for table in aws_route_table.private : table.id]
  tags              = { Name = "${var.cluster_name}-s3" }
}

resource "aws_cloudwatch_log_group" "flow" {
  name              = "/aws/vpc/${var.cluster_name}/flow"
  retention_in_days = var.log_retention_days
}

resource "aws_iam_role" "flow" {
  name = "${var.cluster_name}-flow-logs"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "vpc-flow-logs.amazonaws.com" }
      Action    = "sts:AssumeRole"
      Condition = { StringEquals = { "aws:SourceAccount" = local.account_id } }
    }]
  })
}

resource "aws_iam_role_policy" "flow" {
  name = "write"
  role = aws_iam_role.flow.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect   = "Allow"
      Action   = ["logs:CreateLogStream", "logs:DescribeLogGroups", "logs:DescribeLogStreams", "logs:PutLogEvents"]
      Resource = ["${aws_cloudwatch_log_group.flow.arn}:*"]
    }]
  })
}

resource "aws_flow_log" "this" {
  vpc_id          = aws_vpc.this.id
  traffic_type    = "ALL"
  log_destination = aws_cloudwatch_log_group.flow.arn
  iam_role_arn    = aws_iam_role.flow.arn
  tags            = { Name = var.cluster_name }
  depends_on      = [aws_iam_role_policy.flow]
}
