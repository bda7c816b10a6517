module github.com/imunhatep/kube-node-ready/hack/cluster/workload

go 1.26.0
