variable "region" {
  description = "The AWS region, such as eu-central-1. It needs three availability zones."
  type        = string
}

variable "public_access_cidrs" {
  description = <<-EOT
    The IPv4 networks that may reach the public endpoint of the Kubernetes API: your office or VPN, such as ["203.0.113.7/32"]. With [] the
    public endpoint is off, and kubectl works from inside the VPC only. Nodes always use the private endpoint. There is no default: without a
    list EKS takes 0.0.0.0/0.
  EOT
  type        = list(string)
  nullable    = false

  validation {
    condition     = alltrue([for cidr in var.public_access_cidrs : can(cidrnetmask(cidr))])
    error_message = "Write each entry of public_access_cidrs as an IPv4 network with its length, such as 203.0.113.7/32."
  }

  validation {
    condition     = alltrue([for cidr in var.public_access_cidrs : try(tonumber(split("/", cidr)[1]), 32) >= 8])
    error_message = "An entry of public_access_cidrs is wider than /8. Name your own networks, or set [] and use the private endpoint."
  }
}

variable "cluster_name" {
  description = "The name of the EKS cluster, and a part of the names of what belongs to it. IAM roles have no region: use a name once an account."
  type        = string
  default     = "my-cluster"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,39}$", var.cluster_name))
    error_message = "Choose a cluster_name of at most 40 lower-case letters, digits and hyphens, with a letter first: IAM allows no longer roles."
  }
}

variable "kubernetes_version" {
  description = "The Kubernetes version of the control plane and the system nodes. Raise it by one minor version at a time."
  type        = string
  default     = "1.36" # the version that kube-node-ready's end-to-end tests run on, and the newest that Karpenter 1.14 knows

  validation {
    condition     = contains(["1.34", "1.35", "1.36"], var.kubernetes_version)
    error_message = <<-EOT
      Set kubernetes_version to 1.34, 1.35 or 1.36. EKS has ended standard support of older versions, and this cluster has no other. Karpenter
      1.14 supports no newer one: install a newer Karpenter, and add the version to this list.
    EOT
  }
}

variable "vpc_cidr" {
  description = "The network of the VPC, /16 to /20. It is divided into sixteen parts, and nine of them become subnets: with a /16, nine /20."
  type        = string
  default     = "10.0.0.0/16"

  validation {
    condition     = can(cidrnetmask(var.vpc_cidr)) && try(contains(range(16, 21), tonumber(split("/", var.vpc_cidr)[1])), false)
    error_message = "Set vpc_cidr to an IPv4 network between /16 and /20, such as 10.0.0.0/16. A smaller one has too few addresses for pods."
  }
}

variable "zones" {
  description = "Three availability zones by name. [] takes the first three of the region that EKS supports."
  type        = list(string)
  default     = []
  nullable    = false

  validation {
    condition     = contains([0, 3], length(var.zones)) && length(distinct(var.zones)) == length(var.zones)
    error_message = "Name three different zones, or none."
  }
}

variable "log_retention_days" {
  description = "How long CloudWatch keeps the logs of the control plane and the flow logs of the VPC."
  type        = number
  default     = 90
}

variable "tags" {
  description = "Tags of everything that Terraform creates. Karpenter tags its instances itself."
  type        = map(string)
  default     = {}
}
