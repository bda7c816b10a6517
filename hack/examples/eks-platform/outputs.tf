output "region" {
  description = "The region of the cluster."
  value       = var.region
}

output "cluster_name" {
  description = "The name of the cluster, for Karpenter and for aws eks update-kubeconfig."
  value       = aws_eks_cluster.this.name
}

output "interruption_queue" {
  description = "The queue from which Karpenter learns that instances end."
  value       = aws_sqs_queue.interruption.name
}

output "karpenter_manifests" {
  description = "The EC2NodeClass and the NodePools for this cluster, for kubectl apply."
  value       = join("---\n", [for object in local.karpenter_objects : yamlencode(object)])

  # They are of use only once Karpenter may make nodes.
  depends_on = [
    aws_ec2_tag.discovery,
    aws_eks_access_entry.karpenter_node,
    aws_eks_pod_identity_association.karpenter,
    aws_iam_role_policy.karpenter,
  ]
}

output "vpc_id" {
  description = "The VPC, for databases and peerings."
  value       = aws_vpc.this.id
}

output "data_subnet_ids" {
  description = "Subnets without a route out of the VPC, by zone, for databases and caches."
  value       = { for zone, subnet in aws_subnet.data : zone => subnet.id }
}
