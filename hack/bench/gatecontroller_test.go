package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// audited is a request that was received and answered at these milliseconds.
func audited(user, verb, resource, subresource, name string, code, received, answered int) (r harness.Request) {
	at := func(ms int) time.Time { return time.Unix(1, 0).Add(time.Duration(ms) * time.Millisecond) }
	r.User.Username, r.Verb, r.Response.Code, r.Received, r.Answered = user, verb, code, at(received), at(answered)
	r.ObjectRef.Resource, r.ObjectRef.Subresource, r.ObjectRef.Name = resource, subresource, name
	return r
}

// The worker is created before the request that has added the startup taint is answered.
func TestControllerGate(t *testing.T) {
	requests := []harness.Request{
		audited(adminUser, "update", "nodes", "", node, 409, 90, 95), // refused: it has added nothing
		audited(adminUser, "update", "nodes", "", node, 200, 100, 120),
		audited(controllerUser, "create", "events", "", "", 201, 50, 60), // about the release before
		audited(controllerUser, "patch", "nodes", "", node, 200, 80, 99),
		audited(controllerUser, "create", "pods", "", "", 201, 105, 110),
		audited(controllerUser, "patch", "nodes", "", node, 200, 400, 410),
		audited(controllerUser, "delete", "pods", "", "knr-worker-a", 200, 420, 430),
		audited(controllerUser, "update", "leases", "", "", 200, 300, 301),
		audited(schedulerUser, "create", "pods", "binding", "knr-worker-a", 201, 130, 140),
		audited(kubeletUser, "patch", "pods", "status", "knr-worker-a", 200, 150, 160),
		audited(kubeletUser, "patch", "pods", "status", "knr-worker-a", 200, 370, 380),
		audited(kubeletUser, "patch", "pods", "status", "knr-worker-a", 200, 440, 450),
	}
	gate, err := readControllerGate(requests)
	require.NoError(t, err)
	assert.Equal(t, controllerGate{created: 10 * time.Millisecond, bound: 40 * time.Millisecond, ready: 280 * time.Millisecond,
		released: 310 * time.Millisecond, requests: "create pods, patch nodes, delete pods"}, gate)

	_, err = readControllerGate([]harness.Request{audited(adminUser, "update", "nodes", "", node, 409, 90, 95)})
	require.ErrorContains(t, err, "lacks the request that added the startup taint")
	_, err = readControllerGate([]harness.Request{audited(adminUser, "update", "nodes", "", node, 200, 90, 95)})
	require.ErrorContains(t, err, "lacks a step of the release")
}
