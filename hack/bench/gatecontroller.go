package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// Users in the audit log.
const (
	adminUser      = "admin" // of this benchmark
	controllerUser = "system:serviceaccount:" + harness.Namespace + ":" + harness.Controller
	schedulerUser  = "system:kube-scheduler"
	kubeletUser    = "system:node:" + node
)

// gateOfControllerMode measures the time from the startup taint to the release in controller mode: with workers as they are,
// and with workers that have a token volume, for which kubelet waits.
func (b *bench) gateOfControllerMode(ctx context.Context) (err error) {
	if err := b.Undeploy(ctx); err != nil {
		return err
	}
	for _, withToken := range []bool{false, true} {
		b.step("gate latency in controller mode, token volume: %v, %d times", withToken, b.runs)
		gates, err := b.controllerGates(ctx, withToken)
		if err != nil {
			return err
		}
		each := func(figure func(controllerGate) time.Duration) (all []float64) {
			for _, gate := range gates {
				all = append(all, milliseconds(figure(gate)))
			}
			return all
		}
		released := each(func(g controllerGate) time.Duration { return g.released })
		if withToken {
			b.figure("the same with a token volume: median, 95th percentile", "%.0f ms, %.0f ms", median(released), percentile(released, 0.95))
			continue
		}
		b.budget("gate latency in controller mode: median", median(released), controllerGateBudget, "%.0f ms")
		b.budget("gate latency in controller mode: 95th percentile", percentile(released, 0.95), controllerGateP95Budget, "%.0f ms")
		for _, phase := range []struct {
			name   string
			figure func(controllerGate) time.Duration
		}{
			{"startup taint to worker created", func(g controllerGate) time.Duration { return g.created }},
			{"created to bound by the scheduler", func(g controllerGate) time.Duration { return g.bound - g.created }},
			{"bound to Running, as kubelet reports it", func(g controllerGate) time.Duration { return g.ready - g.bound }},
			{"Running to released", func(g controllerGate) time.Duration { return g.released - g.ready }},
		} {
			b.figure("  of which "+phase.name, "%.0f ms", median(each(phase.figure)))
		}
		b.figure("requests of the controller for a node", "%s", gates[len(gates)-1].requests)
	}
	return nil
}

// controllerGate is one release in controller mode: when each step was answered, after the request that added the startup taint
// came in.
type controllerGate struct {
	created, bound, ready, released time.Duration
	requests                        string // of the controller, all but its Lease
}

// deployControllerMode deploys controller mode with one replica. remove removes it.
func (b *bench) deployControllerMode(ctx context.Context, withToken bool) (remove func(context.Context) error, err error) {
	values := []string{"deploymentMode=controller", "controller.enabled=true", "controller.replicas=1",
		"controller.image.repository=" + harness.ControllerImage, "controller.image.tag=" + harness.Tag, "controller.image.pullPolicy=Never",
		fmt.Sprintf("nodeAuthorization.enabled=%v", !withToken)} // the policy refuses workers with a volume
	manifests, err := b.Render(ctx, values...)
	if err != nil {
		return nil, err
	}
	if withToken {
		manifests = withTokenVolume(manifests)
	}
	undo, err := b.Apply(ctx, manifests)
	remove = func(ctx context.Context) error {
		return errors.Join(undo(ctx), harness.Until(ctx, func() (bool, error) {
			pods, err := b.Pods(ctx, "controller")
			return len(pods) == 0, err
		}))
	}
	if err == nil {
		_, err = b.Kubectl(ctx, "", "-n", harness.Namespace, "rollout", "status", "--timeout=2m", "deployment/"+harness.Controller)
	}
	if err != nil {
		return nil, errors.Join(err, remove(context.WithoutCancel(ctx)))
	}
	return remove, nil
}

// controllerGates deploys controller mode, measures, and removes it.
func (b *bench) controllerGates(ctx context.Context, withToken bool) (gates []controllerGate, err error) {
	remove, err := b.deployControllerMode(ctx, withToken)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, remove(context.WithoutCancel(ctx))) }()
	for i := range b.runs + 1 {
		gate, err := b.controllerGate(ctx)
		if err != nil {
			return nil, err
		}
		if i > 0 { // the first one waits for the leader and warms the caches
			gates = append(gates, gate)
		}
		b.progress(i, b.runs, "releases")
	}
	return gates, nil
}

// withTokenVolume gives the worker what every other pod has: a volume with a token.
func withTokenVolume(manifests string) string {
	const specOfWorker = "      restartPolicy: Never\n"
	token := specOfWorker + "      volumes: [{name: token, projected: {sources: [{serviceAccountToken: {path: token}}]}}]\n"
	return strings.Replace(manifests, specOfWorker, token, 1)
}

func (b *bench) controllerGate(ctx context.Context) (gate controllerGate, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	began := time.Now()
	if err := b.Gate(ctx, node); err != nil {
		return gate, err
	}
	if _, _, err := b.AwaitNode(ctx, node, harness.Verified); err != nil {
		return gate, err
	}
	err = harness.Until(ctx, func() (bool, error) { // the worker is gone
		list, err := b.Kube.CoreV1().Pods(harness.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=worker"})
		return err == nil && len(list.Items) == 0, err
	})
	if err != nil {
		return gate, err
	}
	var requests []harness.Request
	for _, user := range []string{adminUser, controllerUser, schedulerUser, kubeletUser} {
		found, err := b.Audit(began, user)
		if err != nil {
			return gate, err
		}
		requests = append(requests, found...)
	}
	return readControllerGate(requests)
}

// readControllerGate finds the steps of a release among the requests since shortly before the startup taint was added. They are
// not measured from the answer to that request: the controller may create the worker before it comes.
func readControllerGate(requests []harness.Request) (gate controllerGate, err error) {
	isGate := func(r harness.Request) bool {
		return r.User.Username == adminUser && r.Verb == "update" && r.ObjectRef.Resource == "nodes" && r.Response.Code == 200
	}
	i := slices.IndexFunc(requests, isGate)
	if i < 0 {
		return gate, errors.New("the audit log lacks the request that added the startup taint")
	}
	start := requests[i].Received
	requests = slices.DeleteFunc(requests, func(r harness.Request) bool { return r.Received.Before(start) })
	var words []string
	for _, request := range requests {
		after, about := request.Answered.Sub(start), request.ObjectRef
		isWorker := strings.Contains(about.Name, "-worker-") || about.Name == ""
		switch {
		case request.User.Username == controllerUser && about.Resource == "pods" && request.Verb == "create":
			gate.created = after
		case request.User.Username == schedulerUser && about.Subresource == "binding" && isWorker:
			gate.bound = after
		case request.User.Username == controllerUser && about.Resource == "nodes" && about.Subresource == "" && isRelease(request):
			gate.released = after
		}
		if request.User.Username == controllerUser && about.Resource != "leases" && request.Verb != "watch" {
			words = append(words, request.Verb+" "+about.Resource)
		}
	}
	for _, request := range requests { // the last status of kubelet before the release has the address at which the controller asks
		after, about := request.Answered.Sub(start), request.ObjectRef
		if request.User.Username == kubeletUser && about.Resource == "pods" && about.Subresource == "status" &&
			strings.Contains(about.Name, "-worker-") && after < gate.released {
			gate.ready = max(gate.ready, after)
		}
	}
	gate.requests = strings.Join(words, ", ")
	if gate.created == 0 || gate.bound == 0 || gate.ready == 0 || gate.released == 0 {
		return gate, fmt.Errorf("the audit log lacks a step of the release: %+v", gate)
	}
	return gate, nil
}

func percentile(values []float64, p float64) float64 {
	values = slices.Sorted(slices.Values(values))
	return values[min(len(values)-1, int(p*float64(len(values))))]
}
