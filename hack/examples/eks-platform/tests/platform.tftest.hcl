# What the configuration would create, with a provider that calls nothing. With `apply`, because at plan time what AWS computes is unknown.
# `make platform-check` runs it.

mock_provider "aws" {
  mock_data "aws_availability_zones" {
    defaults = { names = ["eu-central-1d", "eu-central-1c", "eu-central-1a", "eu-central-1b"] }
  }
  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
  mock_data "aws_partition" {
    defaults = { partition = "aws" }
  }
  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws:iam::123456789012:role/another" }
  }
  mock_resource "aws_kms_key" {
    defaults = { arn = "arn:aws:kms:eu-central-1:123456789012:key/secrets" }
  }
  mock_resource "aws_cloudwatch_log_group" {
    defaults = { arn = "arn:aws:logs:eu-central-1:123456789012:log-group:/aws/x" }
  }
  mock_resource "aws_default_security_group" {
    defaults = { arn = "arn:aws:ec2:eu-central-1:123456789012:security-group/sg-default" }
  }
  mock_resource "aws_subnet" {
    defaults = { arn = "arn:aws:ec2:eu-central-1:123456789012:subnet/subnet-another" }
  }
  mock_resource "aws_sqs_queue" {
    defaults = { arn = "arn:aws:sqs:eu-central-1:123456789012:interruption" }
  }
  mock_resource "aws_cloudwatch_event_rule" {
    defaults = { arn = "arn:aws:events:eu-central-1:123456789012:rule/mock" }
  }
  mock_resource "aws_launch_template" {
    defaults = { id = "lt-0123456789abcdef0", latest_version = 7 }
  }
  mock_resource "aws_eks_addon" {
    defaults = { configuration_values = "{}" }
  }
  mock_resource "aws_eks_cluster" {
    defaults = {
      vpc_config = { cluster_security_group_id = "sg-cluster" }
      arn        = "arn:aws:eks:eu-central-1:123456789012:cluster/platform"
      identity   = [{ oidc = [{ issuer = "https://oidc.eks.eu-central-1.amazonaws.com/id/0123" }] }]
    }
  }
}

override_resource {
  target = aws_iam_role.node["karpenter"]
  values = { arn = "arn:aws:iam::123456789012:role/KarpenterNodeRole-platform" }
}

override_resource {
  target = aws_subnet.private
  values = { arn = "arn:aws:ec2:eu-central-1:123456789012:subnet/subnet-private" }
}

variables {
  region              = "eu-central-1"
  cluster_name        = "platform"
  public_access_cidrs = ["203.0.113.7/32", "198.51.100.0/24"]
}

run "network" {
  assert {
    condition     = keys(aws_subnet.private) == ["eu-central-1a", "eu-central-1b", "eu-central-1c"]
    error_message = "The private subnets are not in the first three zones: ${join(", ", keys(aws_subnet.private))}"
  }
  assert {
    condition = alltrue([
      for tier in [aws_subnet.public, aws_subnet.private, aws_subnet.data] :
      keys(tier) == keys(aws_subnet.private) && alltrue([for zone, subnet in tier : subnet.availability_zone == zone])
    ])
    error_message = "There is not one public, one private and one data subnet in each zone."
  }
  # Two networks overlap if they are the same to the length of the wider one.
  assert {
    condition = alltrue([
      for cidrs in [flatten([for tier in [aws_subnet.public, aws_subnet.private, aws_subnet.data] : [for subnet in tier : subnet.cidr_block]])] :
      length(distinct(cidrs)) == 9 && alltrue([
        for pair in setproduct(cidrs, cidrs) : pair[0] == pair[1] || length(distinct([
          for cidr in pair : cidrhost("${split("/", cidr)[0]}/${min([for one in pair : tonumber(split("/", one)[1])]...)}", 0)
        ])) == 2
      ])
    ])
    error_message = "Subnets overlap: ${jsonencode(local.subnets)}"
  }
  assert {
    condition = alltrue([
      for subnet in concat(values(aws_subnet.public), values(aws_subnet.private), values(aws_subnet.data)) :
      cidrhost("${split("/", subnet.cidr_block)[0]}/16", 0) == "10.0.0.0" && cidrhost(subnet.cidr_block, 0) == split("/", subnet.cidr_block)[0]
    ])
    error_message = "A subnet is not a part of 10.0.0.0/16, or its address is not the first of its network."
  }
  assert {
    condition = alltrue([
      for zone, subnet in aws_subnet.private :
      aws_route_table_association.private[zone].subnet_id == subnet.id &&
      aws_route_table_association.private[zone].route_table_id == aws_route_table.private[zone].id &&
      [for route in aws_route_table.private[zone].route : [route.cidr_block, route.nat_gateway_id]] == [["0.0.0.0/0", aws_nat_gateway.this[zone].id]] &&
      aws_nat_gateway.this[zone].subnet_id == aws_subnet.public[zone].id
    ])
    error_message = "A private subnet does not route to the NAT gateway of its own zone, and only there."
  }
  assert {
    condition = alltrue([
      for subnet in concat(values(aws_subnet.private), values(aws_subnet.data)) :
      subnet.map_public_ip_on_launch != true && subnet.assign_ipv6_address_on_creation != true
    ])
    error_message = "Instances in private or data subnets get public addresses."
  }
  assert {
    condition     = aws_vpc_endpoint.s3.route_table_ids == toset([for table in aws_route_table.private : table.id])
    error_message = "The S3 endpoint adds its route to other tables than the private ones."
  }
  assert {
    condition     = length(aws_default_security_group.this.ingress) == 0 && length(aws_default_security_group.this.egress) == 0
    error_message = "The default security group has rules."
  }
  assert {
    condition = length(aws_route_table.data.route) == 0 && length(aws_route_table.data.propagating_vgws) == 0 && alltrue([
      for zone, subnet in aws_subnet.data :
      aws_route_table_association.data[zone].subnet_id == subnet.id &&
      aws_route_table_association.data[zone].route_table_id == aws_route_table.data.id
    ])
    error_message = "A data subnet has a route out of the VPC."
  }
  assert {
    condition = alltrue([
      for zone, subnet in aws_subnet.public :
      aws_route_table_association.public[zone].subnet_id == subnet.id &&
      aws_route_table_association.public[zone].route_table_id == aws_route_table.public.id
    ]) && [for route in aws_route_table.public.route : [route.cidr_block, route.gateway_id]] == [["0.0.0.0/0", aws_internet_gateway.this.id]]
    error_message = "A public subnet does not route to the internet gateway: the NAT gateways in it lead nowhere."
  }
  assert {
    condition = (
      aws_flow_log.this.vpc_id == aws_vpc.this.id && aws_flow_log.this.traffic_type == "ALL" &&
      aws_flow_log.this.log_destination == aws_cloudwatch_log_group.flow.arn && aws_cloudwatch_log_group.flow.retention_in_days == 90
    )
    error_message = "The flow logs of the VPC are not complete, or are kept forever."
  }
}

run "control_plane" {
  assert {
    condition = (
      aws_eks_cluster.this.vpc_config[0].endpoint_private_access && aws_eks_cluster.this.vpc_config[0].endpoint_public_access &&
      aws_eks_cluster.this.vpc_config[0].public_access_cidrs == toset(["203.0.113.7/32", "198.51.100.0/24"])
    )
    error_message = "The endpoint is not private, and public for public_access_cidrs only."
  }
  assert {
    condition     = aws_eks_cluster.this.vpc_config[0].subnet_ids == toset([for subnet in aws_subnet.private : subnet.id])
    error_message = "The control plane is not in the private subnets."
  }
  assert {
    condition = (
      aws_eks_cluster.this.enabled_cluster_log_types == toset(["api", "audit", "authenticator", "controllerManager", "scheduler"]) &&
      aws_cloudwatch_log_group.cluster.name == "/aws/eks/${aws_eks_cluster.this.name}/cluster" &&
      aws_cloudwatch_log_group.cluster.retention_in_days == 90
    )
    error_message = "A log of the control plane is missing, or is kept forever."
  }
  assert {
    condition = (
      aws_eks_cluster.this.encryption_config[0].resources == toset(["secrets"]) &&
      aws_eks_cluster.this.encryption_config[0].provider[0].key_arn == aws_kms_key.secrets.arn && aws_kms_key.secrets.enable_key_rotation
    )
    error_message = "The secrets of the cluster are not encrypted with the key of this configuration."
  }
  assert {
    condition     = aws_eks_cluster.this.access_config[0].authentication_mode == "API" && !aws_eks_cluster.this.bootstrap_self_managed_addons
    error_message = "Access does not come from access entries only, or add-ons are installed twice."
  }
  assert {
    condition     = aws_iam_openid_connect_provider.this.url == aws_eks_cluster.this.identity[0].oidc[0].issuer
    error_message = "The OIDC provider is not the cluster's."
  }
  assert {
    condition     = aws_eks_cluster.this.version == "1.36" && aws_eks_node_group.system.version == aws_eks_cluster.this.version
    error_message = "Control plane and system nodes have not the same Kubernetes version."
  }
}

run "system_nodes" {
  assert {
    condition = (
      aws_eks_node_group.system.ami_type == "AL2023_ARM_64_STANDARD" && aws_eks_node_group.system.instance_types == tolist(["t4g.medium"]) &&
      aws_eks_node_group.system.capacity_type == "ON_DEMAND" && aws_eks_node_group.system.scaling_config[0].min_size == 1 &&
      aws_eks_node_group.system.scaling_config[0].max_size == 3 && aws_eks_node_group.system.scaling_config[0].desired_size == 2
    )
    error_message = "The system nodes are not one to three on-demand t4g.medium."
  }
  assert {
    condition     = [for taint in aws_eks_node_group.system.taint : "${taint.key}:${taint.effect}"] == ["CriticalAddonsOnly:NO_SCHEDULE"]
    error_message = "The system nodes have another taint than CriticalAddonsOnly. With a startup taint, nothing could run CoreDNS and Karpenter."
  }
  assert {
    condition = (
      aws_eks_node_group.system.launch_template[0].id == aws_launch_template.system.id &&
      tostring(aws_eks_node_group.system.launch_template[0].version) == tostring(aws_launch_template.system.latest_version)
    )
    error_message = "The system nodes do not use the launch template."
  }
  assert {
    condition = (
      aws_launch_template.system.user_data == null && aws_launch_template.system.image_id == null &&
      length(aws_launch_template.system.network_interfaces) == 0 && aws_launch_template.system.vpc_security_group_ids == null
    )
    error_message = "The launch template of the system nodes has user data, an image or a network of its own: user data can add the startup taint."
  }
  assert {
    condition = (
      aws_launch_template.system.metadata_options[0].http_endpoint == "enabled" &&
      aws_launch_template.system.metadata_options[0].http_tokens == "required" &&
      aws_launch_template.system.metadata_options[0].http_put_response_hop_limit == 1
    )
    error_message = "IMDSv1 is on for the system nodes, their pods reach the metadata service, or they do not reach it themselves."
  }
  assert {
    condition = [
      for device in aws_launch_template.system.block_device_mappings : [device.device_name, tostring(device.ebs[0].encrypted)]
    ] == [["/dev/xvda", "true"]]
    error_message = "The root volume of the system nodes is not encrypted, or is not /dev/xvda, or they have another volume."
  }
}

run "dns" {
  assert {
    condition = alltrue([
      for key in ["CriticalAddonsOnly", "node-ready/unverified", "node-ready/failed"] :
      contains(jsondecode(aws_eks_addon.coredns.configuration_values).tolerations, { key = key, operator = "Exists" })
    ])
    error_message = "CoreDNS does not tolerate the taints of the system nodes and of gated nodes."
  }
  assert {
    condition     = tomap(jsondecode(aws_eks_addon.coredns.configuration_values).nodeSelector) == aws_eks_node_group.system.labels
    error_message = "CoreDNS does not select the system nodes."
  }
  assert {
    condition     = toset([for addon in aws_eks_addon.node : addon.addon_name]) == toset(["eks-pod-identity-agent", "kube-proxy", "vpc-cni"])
    error_message = "An add-on without which no node works is missing."
  }
}

# Whole documents against those in expected/: a change needs the same change there, and a reviewer sees both.
run "documents" {
  assert {
    condition = jsonencode({
      for name, role in merge(
        { cluster = aws_iam_role.cluster, flow = aws_iam_role.flow, karpenter = aws_iam_role.karpenter },
        { for key, role in aws_iam_role.node : "node/${key}" => role },
      ) :
      name => {
        name  = role.name
        trust = jsondecode(role.assume_role_policy)
        managed = concat(tolist(role.managed_policy_arns), [
          for it in concat([aws_iam_role_policy_attachment.cluster], values(aws_iam_role_policy_attachment.node)) : it.policy_arn if it.role == role.name
        ])
        inline = merge({ for it in role.inline_policy : it.name => it.policy }, {
          for it in concat([aws_iam_role_policy.cluster, aws_iam_role_policy.flow], values(aws_iam_role_policy.karpenter)) :
          it.name => jsondecode(it.policy) if it.role == role.id
        })
      }
    }) == jsonencode(jsondecode(file("tests/expected/roles.json")))
    error_message = "The IAM roles, who may take them and what they allow are not those of tests/expected/roles.json."
  }
  assert {
    condition = jsonencode({
      for name, rule in aws_cloudwatch_event_rule.interruption : name => jsondecode(rule.event_pattern)
    }) == jsonencode(jsondecode(file("tests/expected/events.json")))
    error_message = "The events that reach Karpenter's queue are not those of tests/expected/events.json."
  }
  assert {
    condition     = jsonencode(jsondecode(aws_sqs_queue_policy.interruption.policy)) == jsonencode(jsondecode(file("tests/expected/queue.json")))
    error_message = "Who may use Karpenter's queue is not what tests/expected/queue.json says."
  }
  assert {
    condition = (
      jsonencode(jsondecode(aws_eks_addon.coredns.configuration_values)) == jsonencode(jsondecode(file("tests/expected/coredns.json"))) &&
      alltrue([for addon in aws_eks_addon.node : addon.configuration_values == "{}"])
    )
    error_message = "The configuration of CoreDNS is not that of tests/expected/coredns.json, or another add-on has one."
  }
  assert {
    condition = (
      jsonencode([for text in split("---\n", output.karpenter_manifests) : yamldecode(text)]) ==
      jsonencode([for text in split("---\n", file("tests/expected/karpenter.yaml")) : yamldecode(text)])
    )
    error_message = "The node class and the NodePools are not those of tests/expected/karpenter.yaml."
  }
  assert {
    condition = jsonencode(yamldecode(file("../karpenter/values.yaml"))) == jsonencode({
      config = { initialTimeout = "5m", onTimeout = "taint", dnsTestDomains = ["kubernetes.default.svc.cluster.local"] }
    }) && toset(flatten(local.node_pools[*].spec.template.spec.startupTaints[*].key)) == toset(["node-ready/unverified"])
    error_message = "The chart's values are others, or the NodePools have not its startup taint."
  }
}

run "permissions" {
  # Every statement of every policy that is written here.
  assert {
    condition = alltrue(flatten([
      for policy in concat(values(aws_iam_role_policy.karpenter), [aws_iam_role_policy.cluster, aws_iam_role_policy.flow]) : [
        for statement in jsondecode(policy.policy).Statement : [
          for resource in flatten([statement.Resource]) : resource != "*" ?
          can(regex("^arn:aws:[a-z0-9]+:[a-z0-9-]*:[0-9]*:[^:*]", resource)) :
          alltrue([
            for action in flatten([statement.Action]) :
            can(regex("^(ec2:Describe[A-Za-z]+|iam:ListInstanceProfiles|pricing:GetProducts)$", action))
          ])
        ]
      ]
    ]))
    error_message = "A statement names the resource *, or an ARN with * before the resource's kind, where AWS knows a narrower one."
  }
  assert {
    condition = alltrue(flatten([
      for policy in concat(values(aws_iam_role_policy.karpenter), [aws_iam_role_policy.cluster, aws_iam_role_policy.flow]) : [
        for statement in jsondecode(policy.policy).Statement : [for action in flatten([statement.Action]) : !strcontains(action, "*")]
      ]
    ]))
    error_message = "A statement allows actions by a pattern."
  }
  assert {
    condition = toset(flatten([
      for statement in jsondecode(aws_iam_role_policy.karpenter["instances"].policy).Statement : [
        for resource in flatten([statement.Resource]) : resource if can(regex(":(subnet|security-group)/", resource))
      ]
      ])) == toset([
      aws_subnet.private["eu-central-1a"].arn, aws_default_security_group.this.arn,
      "arn:aws:ec2:eu-central-1:123456789012:security-group/${aws_eks_cluster.this.vpc_config[0].cluster_security_group_id}",
    ])
    error_message = "Karpenter may launch into other subnets than the private ones, or with other security groups."
  }
  assert {
    condition = [
      for statement in jsondecode(aws_iam_role_policy.karpenter["profiles"].policy).Statement :
      flatten([statement.Resource]) if contains(statement.Action, "iam:PassRole")
    ] == [[aws_iam_role.node["karpenter"].arn]]
    error_message = "Karpenter may pass another role than that of its nodes."
  }
  assert {
    condition     = sum([for policy in aws_iam_role_policy.karpenter : length(policy.policy)]) < 9000
    error_message = "The policies of Karpenter are near the 10,240 characters that IAM allows a role, which longer names could exceed."
  }
  assert {
    condition = (
      jsondecode(aws_iam_role.karpenter.assume_role_policy).Statement[0].Principal == { Service = "pods.eks.amazonaws.com" } &&
      jsondecode(aws_iam_role.karpenter.assume_role_policy).Statement[0].Action == ["sts:AssumeRole", "sts:TagSession"] &&
      jsondecode(aws_iam_role.karpenter.assume_role_policy).Statement[0].Condition.StringEquals == {
        "aws:RequestTag/eks-cluster-name"           = aws_eks_cluster.this.name
        "aws:RequestTag/kubernetes-namespace"       = aws_eks_pod_identity_association.karpenter.namespace
        "aws:RequestTag/kubernetes-service-account" = aws_eks_pod_identity_association.karpenter.service_account
      } && aws_eks_pod_identity_association.karpenter.role_arn == aws_iam_role.karpenter.arn
    )
    error_message = "Not only Karpenter's service account can use Karpenter's role."
  }
  assert {
    condition = (
      aws_eks_access_entry.karpenter_node.type == "EC2_LINUX" &&
      aws_eks_access_entry.karpenter_node.principal_arn == aws_iam_role.node["karpenter"].arn &&
      aws_eks_node_group.system.node_role_arn == aws_iam_role.node["system"].arn
    )
    error_message = "Nodes of Karpenter cannot join, or the access entry is that of the system nodes, which EKS makes itself."
  }
}

run "interruptions" {
  assert {
    condition = toset([for rule in aws_cloudwatch_event_rule.interruption : one(jsondecode(rule.event_pattern).detail-type)]) == toset([
      "AWS Health Event", "EC2 Capacity Reservation Instance Interruption Warning", "EC2 Instance Rebalance Recommendation",
      "EC2 Instance State-change Notification", "EC2 Spot Instance Interruption Warning",
    ])
    error_message = "Karpenter does not learn of every interruption."
  }
  assert {
    condition = alltrue([
      for name, rule in aws_cloudwatch_event_rule.interruption :
      aws_cloudwatch_event_target.interruption[name].rule == rule.name &&
      aws_cloudwatch_event_target.interruption[name].arn == aws_sqs_queue.interruption.arn
    ]) && aws_sqs_queue_policy.interruption.queue_url == aws_sqs_queue.interruption.id
    error_message = "A rule does not lead to the queue."
  }
  assert {
    condition     = aws_sqs_queue.interruption.sqs_managed_sse_enabled
    error_message = "The queue is not encrypted."
  }
  assert {
    condition = alltrue([
      for statement in jsondecode(aws_sqs_queue_policy.interruption.policy).Statement :
      statement.Principal == { Service = "events.amazonaws.com" } &&
      toset(statement.Condition.ArnEquals["aws:SourceArn"]) == toset([for rule in aws_cloudwatch_event_rule.interruption : rule.arn])
      if statement.Effect == "Allow"
    ])
    error_message = "Others than the rules may send to the queue."
  }
}

run "karpenter_objects" {
  assert {
    condition = [
      for object in [for text in split("---\n", output.karpenter_manifests) : yamldecode(text)] : "${object.kind}/${object.metadata.name}"
    ] == ["EC2NodeClass/default", "NodePool/graviton-spot", "NodePool/x86-spot"]
    error_message = "The output has other objects: ${output.karpenter_manifests}"
  }
  # Every NodePool is behind the gate.
  assert {
    condition = alltrue([
      for object in [for text in split("---\n", output.karpenter_manifests) : yamldecode(text)] :
      contains(try(object.spec.template.spec.startupTaints, []), { key = "node-ready/unverified", value = "true", effect = "NoSchedule" }) &&
      !can(object.spec.template.spec.taints)
      if object.kind == "NodePool"
    ])
    error_message = "A NodePool lacks the startup taint, or has it under `taints`."
  }
  assert {
    condition = [
      for object in [for text in split("---\n", output.karpenter_manifests) : yamldecode(text)] : concat(
        [object.metadata.name, object.spec.weight, object.spec.template.spec.nodeClassRef.name],
        [for it in object.spec.template.spec.requirements : it.values if it.key == "kubernetes.io/arch"],
        [for it in object.spec.template.spec.requirements : it.values if it.key == "karpenter.sh/capacity-type"],
        [for it in object.spec.template.spec.requirements : it.values if it.key == "topology.kubernetes.io/zone"],
      ) if object.kind == "NodePool"
      ] == [
      ["graviton-spot", 10, "default", ["arm64"], ["spot", "on-demand"], keys(aws_subnet.private)],
      ["x86-spot", 5, "default", ["amd64"], ["spot", "on-demand"], keys(aws_subnet.private)],
    ]
    error_message = "The NodePools have other weights, architectures, capacity types or zones: ${output.karpenter_manifests}"
  }
  assert {
    condition = [
      for options in [yamldecode(split("---\n", output.karpenter_manifests)[0]).spec.metadataOptions] :
      [options.httpTokens, options.httpPutResponseHopLimit]
    ] == [["required", 1]]
    error_message = "IMDSv1 is on for the nodes of Karpenter, or their pods reach the metadata service."
  }
  assert {
    condition     = alltrue([for device in yamldecode(split("---\n", output.karpenter_manifests)[0]).spec.blockDeviceMappings : device.ebs.encrypted])
    error_message = "A volume of Karpenter's nodes is not encrypted."
  }
  assert {
    condition     = yamldecode(split("---\n", output.karpenter_manifests)[0]).spec.role == aws_iam_role.node["karpenter"].name
    error_message = "The node class names another role than that of Karpenter's nodes."
  }
  assert {
    condition = (
      [for term in yamldecode(split("---\n", output.karpenter_manifests)[0]).spec.securityGroupSelectorTerms : term.tags] ==
      [{ (aws_ec2_tag.discovery.key) = aws_ec2_tag.discovery.value }] &&
      aws_ec2_tag.discovery.resource_id == aws_eks_cluster.this.vpc_config[0].cluster_security_group_id
    )
    error_message = "The node class does not find the cluster's security group."
  }
  assert {
    condition = alltrue([
      for subnet in concat(values(aws_subnet.public), values(aws_subnet.private), values(aws_subnet.data)) :
      contains([for it in aws_subnet.private : it.id], subnet.id) == alltrue([
        for key, value in yamldecode(split("---\n", output.karpenter_manifests)[0]).spec.subnetSelectorTerms[0].tags :
        lookup(subnet.tags, key, "") == value
      ])
    ])
    error_message = "The node class does not find the private subnets, and only these."
  }
}
