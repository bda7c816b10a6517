package controller

import (
	"context"
	"fmt"
	"testing"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

func image(name string) string {
	return fmt.Sprintf(`"image":%q,"imagePullPolicy":"IfNotPresent"`, name)
}

// A wrong tag, and a registry that swallows what is sent to it.
func TestImagePull(t *testing.T) {
	s := start(t)
	right := image(harness.Image + ":" + harness.Tag)
	s.Undo(s.redeploy)
	wrongTag, silentRegistry := nodes[0], nodes[1]
	s.changeAgent(image(harness.Image + ":wrong"))
	s.Gate(wrongTag)
	t.Log(s.awaitFailed(wrongTag, "ImagePull", harness.Image+":wrong").Message)
	s.awaitEvent(wrongTag, "ImagePull")

	s.Undo(func(ctx context.Context) error { return s.Cluster.Repair(ctx, silentRegistry) })
	s.NoError(s.Cluster.Filter(s.Ctx, silentRegistry, "output priority filter", "tcp dport 5999 drop"))
	// An address that the node has a route to: it has no default route.
	registry := s.Kubectl("", "get", "endpointslices", "kubernetes", "-o", "jsonpath={.endpoints[0].addresses[0]}") + ":5999/"
	s.changeAgent(image(registry + harness.Image))
	s.Gate(silentRegistry)
	t.Log(s.awaitFailed(silentRegistry, "ImagePull", "Pulling image").Message)
	s.awaitEvent(silentRegistry, "ImagePull")

	s.repair(silentRegistry) // kubelet does not end the pod before the pull has ended
	s.changeAgent(right)
	for _, node := range []string{wrongTag, silentRegistry} {
		s.awaitRecovered(node)
		s.Len(s.events(node, "ImagePull"), 1, "its pod was replaced, which is no new reason")
	}
}

func TestCrashLoop(t *testing.T) {
	s := start(t)
	const right = `"env":[{"name":"CHECK_TIMEOUT","$patch":"delete"}]`
	s.Undo(s.redeploy)
	s.changeAgent(`"env":[{"name":"CHECK_TIMEOUT","value":"soon"}]`)
	s.Gate(nodes[2])
	t.Log(s.awaitFailed(nodes[2], "CrashLoop", "CHECK_TIMEOUT").Message)
	s.awaitEvent(nodes[2], "CrashLoop")
	s.changeAgent(right)
	s.awaitRecovered(nodes[2])
}
