package workers

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const (
	fleetLabel = "e2e-fleet"
	betaOS     = "beta.kubernetes.io/os" // kube-controller-manager adds it
)

// besides lets a test run besides others, in the short version: in the long one it needs the whole machine.
func besides(t *testing.T) {
	t.Helper()
	if !harness.Long() {
		t.Parallel()
	}
}

// fleet names nodes whose kubelet kwok plays: so many of a kind, which says what becomes of their workers.
func fleet(kind, test string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%s-%d", kind, test, i)
	}
	return names
}

// deleteFleet deletes the Nodes of a test when it ends.
func (s *suite) deleteFleet(test string) {
	s.Undo(func(ctx context.Context) error {
		return s.Cluster.Kube.CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: fleetLabel + "=" + test})
	})
}

// join creates Nodes as they register: with the startup taint between foreign ones, a foreign label and a foreign annotation.
func (s *suite) join(test string, names ...string) {
	s.T.Helper()
	capacity := corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("8Gi"), "pods": resource.MustParse("110")}
	var creators errgroup.Group
	creators.SetLimit(8)
	for _, name := range names {
		creators.Go(func() error {
			_, err := s.Cluster.Kube.CoreV1().Nodes().Create(s.Ctx, &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{
					Name: name,
					Labels: map[string]string{fleetLabel: test, corev1.LabelOSStable: "linux", betaOS: "linux",
						corev1.LabelHostname: name, "foreign/label": "kept"},
					Annotations: map[string]string{"kwok.x-k8s.io/node": "fake", "foreign/annotation": "kept"},
				},
				Spec: corev1.NodeSpec{Taints: []corev1.Taint{
					{Key: "foreign/front", Value: "1", Effect: corev1.TaintEffectNoSchedule},
					{Key: harness.Taint, Value: "true", Effect: corev1.TaintEffectNoSchedule},
					{Key: "foreign/behind", Value: "2", Effect: corev1.TaintEffectPreferNoSchedule},
				}},
				Status: corev1.NodeStatus{Capacity: capacity, Allocatable: capacity},
			}, metav1.CreateOptions{})
			return err
		})
	}
	s.NoError(creators.Wait())
}

// joined is what must be on such a Node in the end.
func joined(name, test string) map[string]string {
	return map[string]string{
		"label " + fleetLabel: test, "label " + corev1.LabelOSStable: "linux", "label " + betaOS: "linux", "label " + corev1.LabelHostname: name,
		"label foreign/label": "kept", "annotation foreign/annotation": "kept", "annotation kwok.x-k8s.io/node": "fake",
		"taint foreign/front NoSchedule": "1", "taint foreign/behind PreferNoSchedule": "2",
	}
}

// inFleet reads the Nodes of a test.
func (s *suite) inFleet(test string) []corev1.Node {
	s.T.Helper()
	list, err := s.Cluster.Kube.CoreV1().Nodes().List(s.Ctx, metav1.ListOptions{LabelSelector: fleetLabel + "=" + test})
	s.NoError(err)
	return list.Items
}

// Many nodes join at once, and nodes whose workers fail or do not start joined before them. All that can be released are, with one
// worker for each node.
func TestFaultManyNodes(t *testing.T) {
	besides(t)
	good, bad := harness.Pick(200, 1000), harness.Pick(30, 50)
	s := begin(t, fmt.Sprintf("%d nodes at once, and %d bad ones before them", good, bad), "all but the bad ones verified, one worker each")
	const test = "many"
	s.deleteFleet(test)
	workers := s.record()
	failing, stuck := fleet("failing", test, bad/2), fleet("stuck", test, bad-bad/2)
	s.join(test, append(failing, stuck...)...)
	for _, node := range failing {
		s.await(workers, node, (*seen).hasEnded)
	}
	for _, node := range stuck {
		s.await(workers, node, func(w *seen) bool { return w.Spec.NodeName == node })
	}

	one := fleet("single", test, 1)
	began := time.Now()
	s.join(test, one...)
	_, at := s.AwaitVerified(one[0])
	t.Logf("one good node among %d bad ones: verified after %s", bad, at.Sub(began).Round(time.Millisecond))

	began = time.Now()
	s.join(test, append(fleet("good", test, good-good/10), fleet("missed", test, good/10)...)...)
	t.Logf("%d nodes created after %s", good, time.Since(began).Round(time.Millisecond))
	isBad := func(node *corev1.Node) bool {
		return strings.HasPrefix(node.Name, "failing-") || strings.HasPrefix(node.Name, "stuck-")
	}
	s.Until(func() (bool, error) {
		for _, node := range s.inFleet(test) {
			if !isBad(&node) && !harness.Verified(&node) {
				return false, nil
			}
		}
		return true, nil
	}, "nodes that are not verified")
	s.row.Recovered(time.Since(began))

	peak, all := workers.atATime()
	t.Logf("all verified after %s: %d workers, %d at a time", time.Since(began).Round(10*time.Millisecond), all, peak)
	for _, node := range s.inFleet(test) {
		s.row.Keeps(&node, joined(node.Name, test))
		if isBad(&node) {
			s.True(harness.HasTaint(&node, harness.Taint), node.Name)
			s.NotContains(node.Labels, harness.Label)
			continue
		}
		of := workers.of(node.Name)
		s.Equal(1, len(of), node.Name)
		s.Equal(of[0].UID, worker(&node), node.Name)
	}
}

// raced is how many nodes are raced for at a time.
const raced = 6

// Two well-behaved writers keep changing their own taints, label and annotation on a node while the controller releases it.
func TestFaultReleaseRace(t *testing.T) {
	besides(t)
	s := begin(t, "release race: two writers of other taints", "verified; nothing foreign is lost")
	const test = "race"
	s.deleteFleet(test)
	config, err := clientcmd.BuildConfigFromFlags("", s.Cluster.Kubeconfig())
	s.NoError(err)
	config.QPS = -1 // a rate limit would slow the writers down
	s.Cluster.Kube, err = kubernetes.NewForConfig(config)
	s.NoError(err)
	names := fleet("race", test, harness.Pick(60, 1000))
	began := time.Now()
	var done atomic.Int64
	queue := make(chan string, len(names))
	for _, name := range names {
		queue <- name
	}
	close(queue)
	var all sync.WaitGroup
	for range raced {
		all.Go(func() {
			for name := range queue {
				s.race(name, test)
				if n := done.Add(1); n%100 == 0 {
					t.Logf("%d of %d nodes after %s", n, len(names), time.Since(began).Round(time.Second))
				}
			}
		})
	}
	all.Wait()
	requests, err := s.Cluster.Audit(began, harness.ControllerUser)
	s.NoError(err)
	sent, refused := 0, 0
	for _, request := range requests {
		if request.Verb == "patch" && strings.HasPrefix(request.ObjectRef.Name, "race-") && request.ObjectRef.Subresource == "" {
			if sent++; request.Response.Code != http.StatusOK {
				refused++
			}
		}
	}
	t.Logf("%d nodes: %d patches sent, %d of them refused and built again", len(names), sent, refused)
	s.GreaterOrEqual(refused, len(names)/20, "hardly any race: the test shows nothing")
}

// race verifies one node under two writers.
func (s *suite) race(name, test string) {
	front, behind := harness.NewWriter(s.Suite, name, "front"), harness.NewWriter(s.Suite, name, "behind")
	began := time.Now()
	s.join(test, name)
	writing, stop := context.WithCancel(s.Ctx)
	defer stop()
	var writers sync.WaitGroup
	writers.Go(func() { front.Run(writing, front.Update) })
	writers.Go(func() { behind.Run(writing, behind.Patch) })
	now, _, err := s.Cluster.AwaitNode(s.Ctx, name, func(node *corev1.Node) bool {
		if _, labelled := node.Labels[harness.Label]; labelled && harness.HasTaint(node, harness.Taint) {
			s.row.Lose("%s is labelled and still tainted", name)
		}
		return harness.Verified(node)
	})
	if err != nil {
		s.row.Lose("%s was never verified: %v %v", name, now, err)
	}
	s.row.Recovered(time.Since(began))
	stop()
	writers.Wait()
	if now, err = s.Cluster.Node(s.Ctx, name); err != nil {
		s.row.Lose("%s: %v", name, err)
		return
	}
	if worker(now) == "" {
		s.row.Lose("the annotation of %s", name)
	}
	wanted := joined(name, test)
	front.Wants(wanted)
	behind.Wants(wanted)
	s.row.Keeps(now, wanted)
	for _, lost := range append(front.Lost(), behind.Lost()...) {
		s.row.Lose("%s of %s", lost, name)
	}
}
