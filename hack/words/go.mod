module github.com/imunhatep/kube-node-ready/hack/words

go 1.26.0
