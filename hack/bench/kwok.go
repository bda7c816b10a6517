package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// kwokNode is the annotation of the nodes for which kwok acts as kubelet.
const kwokNode = "kwok.x-k8s.io/node"

// startKwok starts kwok. The context that it returns ends with kwok.
func (b *bench) startKwok(ctx context.Context) (running context.Context, stop func(), err error) {
	module, err := b.Run(ctx, "", "go", "list", "-C", "hack/tools/kwok", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok")
	if err != nil {
		return nil, nil, err
	}
	args := []string{"--kubeconfig", b.Kubeconfig(), "--manage-all-nodes=false",
		"--manage-nodes-with-annotation-selector=" + kwokNode + "=fake", "--node-lease-duration-seconds=40"}
	for _, stage := range []string{"node/fast/node-initialize", "node/heartbeat-with-lease/node-heartbeat-with-lease", "pod/fast/pod-ready", "pod/fast/pod-delete"} {
		args = append(args, "--config", filepath.Join(strings.TrimSpace(module), "kustomize", "stage", stage+".yaml"))
	}
	path := filepath.Join(b.Dir, "log", "kwok.log")
	log, err := os.Create(path)
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(b.Tool("kwok"), args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cancel(fmt.Errorf("kwok has ended (%w), see %s", cmp.Or(cmd.Wait(), errors.New("exit status 0")), path))
	}()
	return ctx, func() {
		_ = cmd.Process.Kill()
		<-ended
		_ = log.Close()
	}, nil
}
