// Command nothing is an agent that verifies nothing: it opens its node with one request and holds. What a gate costs at least.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/imunhatep/kube-node-ready/hack/bench/raw"
)

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	client, err := raw.New()
	if err == nil {
		err = client.Open(os.Getenv("NODE_NAME"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	<-stop
}
