package nodepatch

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// newNode is as kubelet registers it, with a foreign taint on either side of ours.
func newNode() *corev1.Node {
	return &corev1.Node{
		TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{
			Name: "node1.example", UID: "uid-1", ResourceVersion: "1",
			Labels: map[string]string{"kubernetes.io/os": "linux"},
		},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{foreign("front"), ours(corev1.TaintEffectNoSchedule), foreign("behind")}},
	}
}

// prepend is what another client does that has a taint to put on.
func prepend(key string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Spec.Taints = append([]corev1.Taint{foreign(key)}, n.Spec.Taints...) }
}

func drop(key string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		var left []corev1.Taint
		for _, taint := range n.Spec.Taints {
			if taint.Key != key {
				left = append(left, taint)
			}
		}
		n.Spec.Taints = left
	}
}

func heartbeat(*corev1.Node) {}

func TestClient(t *testing.T) {
	s := newServer(t, newNode())

	node, err := s.client.Get(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "uid-1", string(node.UID))

	patched, err := s.client.Patch(t.Context(), []byte(`[{"op":"test","path":"/metadata/uid","value":"uid-1"}]`))
	require.NoError(t, err)
	assert.Len(t, patched.Spec.Taints, 3)
	assert.Equal(t, []string{"GET", "PATCH"}, s.requests)
	assert.Equal(t, []string{`[{"op":"test","path":"/metadata/uid","value":"uid-1"}]`}, s.bodies)
	assert.Equal(t, []string{"application/json-patch+json"}, s.headers[1].Values("Content-Type"))

	other := Client{REST: s.client.REST, Name: "other"}
	_, err = other.Get(t.Context())
	require.EqualError(t, err, "no such path: /api/v1/nodes/other")
	_, err = other.Patch(t.Context(), []byte("[]"))
	require.EqualError(t, err, "no such path: /api/v1/nodes/other")
}

// One call is one request: the answer is what counts, not how long client-go would wait for another.
func TestClientAsksOnce(t *testing.T) {
	s := newServer(t, newNode())
	s.getting = func(_ int, w http.ResponseWriter) bool { return askToWait(w, 3600) }
	s.patching = s.getting
	_, err := s.client.Get(t.Context())
	require.EqualError(t, err, "the server's message")
	_, err = s.client.Patch(t.Context(), []byte("[]"))
	require.EqualError(t, err, "the server's message")
	assert.Equal(t, []string{"GET", "PATCH"}, s.requests)
}

func TestReleaseWaitsAsTold(t *testing.T) {
	s := newServer(t, newNode())
	s.patching = func(n int, w http.ResponseWriter) bool { return n == 1 && askToWait(w, 1) }
	p := &Patcher{Node: s.client, Timeout: 3 * time.Second, Deadline: time.Minute}
	start := time.Now()
	require.NoError(t, release(t.Context(), p, asRead(s.node), keys))
	assert.Equal(t, []string{"PATCH", "GET", "PATCH"}, s.requests)
	assert.GreaterOrEqual(t, time.Since(start), time.Second, "the API server asked to wait that long")
}

func TestRelease(t *testing.T) {
	const notOurs = "testing value /spec/taints/1/key failed"
	status := func(code int, reason metav1.StatusReason) func(int, http.ResponseWriter) bool {
		return func(_ int, w http.ResponseWriter) bool { return answerStatus(w, code, reason, "the server's message") }
	}
	first := func(answer func(n int, w http.ResponseWriter) bool) func(int, http.ResponseWriter) bool {
		return func(n int, w http.ResponseWriter) bool { return n == 1 && answer(n, w) }
	}

	for name, test := range map[string]struct {
		patching func(s *server) func(n int, w http.ResponseWriter) bool
		getting  func(s *server) func(n int, w http.ResponseWriter) bool
		requests string   // the methods that the server sees
		retried  []string // texts of the errors
		err      string
		is       error
		taints   string // keys of the Node at the end
	}{
		"applied": {
			requests: "PATCH", taints: "front behind",
		},
		"a taint came in front: built anew": {
			patching: func(s *server) func(int, http.ResponseWriter) bool {
				return func(n int, _ http.ResponseWriter) bool {
					if n == 1 {
						s.change(prepend("new"))
					}
					return false
				}
			},
			requests: "PATCH GET PATCH", retried: []string{notOurs}, taints: "new front behind",
		},
		"a taint that comes and goes": {
			patching: func(s *server) func(int, http.ResponseWriter) bool {
				return func(n int, _ http.ResponseWriter) bool {
					switch n {
					case 1, 3:
						s.change(prepend("flips"))
					case 2, 4:
						s.change(drop("flips"))
					}
					return false
				}
			},
			requests: "PATCH GET PATCH GET PATCH GET PATCH GET PATCH",
			retried: []string{notOurs, "testing value /spec/taints/2/key failed",
				notOurs, "testing value /spec/taints/2/key failed"},
			taints: "front behind",
		},
		"our taint came once more, behind the others: patched once more": {
			patching: func(s *server) func(int, http.ResponseWriter) bool {
				return func(n int, _ http.ResponseWriter) bool {
					if n == 1 {
						s.change(func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, ours(corev1.TaintEffectNoExecute)) })
					}
					return false
				}
			},
			requests: "PATCH GET PATCH", retried: []string{"the startup taint was added while the node was patched"}, taints: "front behind",
		},
		"our taint is gone, the label is not on": {
			patching: func(s *server) func(int, http.ResponseWriter) bool {
				return func(n int, _ http.ResponseWriter) bool {
					if n == 1 {
						s.change(drop(ourKey))
					}
					return false
				}
			},
			requests: "PATCH GET PATCH", retried: []string{notOurs}, taints: "front behind",
		},
		"somebody else released the node: nothing is left to send": {
			patching: func(s *server) func(int, http.ResponseWriter) bool {
				return func(int, http.ResponseWriter) bool {
					s.change(drop(ourKey))
					s.change(func(node *corev1.Node) { node.Labels[keys.Label] = keys.LabelValue })
					return false
				}
			},
			requests: "PATCH GET", taints: "front behind",
		},
		"422 and nothing has changed": {
			patching: func(*server) func(int, http.ResponseWriter) bool {
				return status(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
			},
			requests: "PATCH GET",
			err:      "the API server refuses the patch: the server's message",
			taints:   "front node-ready/unverified behind",
		},
		"422 with another reason and nothing has changed": {
			patching: func(*server) func(int, http.ResponseWriter) bool {
				return status(http.StatusUnprocessableEntity, metav1.StatusReasonForbidden)
			},
			requests: "PATCH GET",
			err:      "the API server refuses the patch: the server's message",
			taints:   "front node-ready/unverified behind",
		},
		"422 while nothing but the heartbeat changes": {
			patching: func(s *server) func(int, http.ResponseWriter) bool {
				return func(_ int, w http.ResponseWriter) bool {
					s.change(heartbeat)
					return answerStatus(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "the server's message")
				}
			},
			requests: "PATCH GET PATCH GET PATCH GET PATCH GET",
			retried:  []string{"the server's message", "the server's message", "the server's message"},
			err:      "the API server refuses the patch: the server's message",
			taints:   "front node-ready/unverified behind",
		},
		"409": {
			patching: func(*server) func(int, http.ResponseWriter) bool {
				return first(status(http.StatusConflict, metav1.StatusReasonConflict))
			},
			requests: "PATCH GET PATCH", retried: []string{"the server's message"}, taints: "front behind",
		},
		"429": {
			patching: func(*server) func(int, http.ResponseWriter) bool {
				return first(status(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests))
			},
			requests: "PATCH GET PATCH", retried: []string{"the server's message"}, taints: "front behind",
		},
		"503": {
			patching: func(*server) func(int, http.ResponseWriter) bool {
				return first(status(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable))
			},
			requests: "PATCH GET PATCH", retried: []string{"the server's message"}, taints: "front behind",
		},
		"400": {
			patching: func(*server) func(int, http.ResponseWriter) bool {
				return status(http.StatusBadRequest, metav1.StatusReasonBadRequest)
			},
			requests: "PATCH", err: "the API server refuses the patch: the server's message",
			taints: "front node-ready/unverified behind",
		},
		"403": {
			patching: func(*server) func(int, http.ResponseWriter) bool {
				return status(http.StatusForbidden, metav1.StatusReasonForbidden)
			},
			requests: "PATCH", err: "the API server refuses the patch: the server's message",
			taints: "front node-ready/unverified behind",
		},
		"404": {
			patching: func(*server) func(int, http.ResponseWriter) bool {
				return status(http.StatusNotFound, metav1.StatusReasonNotFound)
			},
			requests: "PATCH", err: "the API server refuses the patch: the server's message",
			taints: "front node-ready/unverified behind",
		},
		"answer lost after the patch was applied: no second write": {
			patching: func(s *server) func(int, http.ResponseWriter) bool {
				return func(_ int, w http.ResponseWriter) bool {
					assert.NoError(s.t, s.apply([]byte(s.bodies[0])))
					return hangUp(w)
				}
			},
			requests: "PATCH GET", taints: "front behind",
		},
		"connection lost before the patch was applied": {
			patching: func(*server) func(int, http.ResponseWriter) bool {
				return first(func(_ int, w http.ResponseWriter) bool { return hangUp(w) })
			},
			requests: "PATCH GET PATCH", retried: []string{`Patch "URL/api/v1/nodes/node1.example": EOF`}, taints: "front behind",
		},
		"created again under the same name": {
			patching: func(s *server) func(int, http.ResponseWriter) bool {
				return func(int, http.ResponseWriter) bool {
					s.change(func(node *corev1.Node) { node.UID = "uid-2" })
					return false
				}
			},
			requests: "PATCH GET", err: "the node was deleted and created again under the same name", is: ErrReplaced,
			taints: "front node-ready/unverified behind",
		},
		"created again and released by its own agent": {
			patching: func(s *server) func(int, http.ResponseWriter) bool {
				return func(int, http.ResponseWriter) bool {
					s.change(drop(ourKey))
					s.change(func(node *corev1.Node) { node.UID, node.Labels[keys.Label] = "uid-2", keys.LabelValue })
					return false
				}
			},
			requests: "PATCH GET", err: "the node was deleted and created again under the same name", is: ErrReplaced,
			taints: "front behind",
		},
		"reading again fails at first": {
			patching: func(*server) func(int, http.ResponseWriter) bool {
				return first(status(http.StatusConflict, metav1.StatusReasonConflict))
			},
			getting: func(*server) func(int, http.ResponseWriter) bool {
				return first(status(http.StatusInternalServerError, metav1.StatusReasonInternalError))
			},
			requests: "PATCH GET GET PATCH", retried: []string{"the server's message"}, taints: "front behind",
		},
		"deleted": {
			patching: func(*server) func(int, http.ResponseWriter) bool {
				return first(status(http.StatusConflict, metav1.StatusReasonConflict))
			},
			getting: func(*server) func(int, http.ResponseWriter) bool {
				return func(_ int, w http.ResponseWriter) bool {
					return answerStatus(w, http.StatusNotFound, metav1.StatusReasonNotFound, `nodes "node1.example" not found`)
				}
			},
			requests: "PATCH GET",
			err:      `patch of node node1.example: the server's message; cannot read the node again: nodes "node1.example" not found`,
			taints:   "front node-ready/unverified behind",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, newNode())
			if test.patching != nil {
				s.patching = test.patching(s)
			}
			if test.getting != nil {
				s.getting = test.getting(s)
			}
			var retried []string
			p := &Patcher{Node: s.client, Timeout: time.Minute, Deadline: time.Hour, Retried: func(err error) {
				retried = append(retried, strings.ReplaceAll(err.Error(), s.client.REST.Get().AbsPath("/").URL().Scheme+"://"+s.client.REST.Get().URL().Host, "URL"))
			}}

			err := release(t.Context(), p, asRead(newNode()), keys)

			if test.err == "" {
				require.NoError(t, err)
				assert.True(t, keys.IsVerified(s.node.Labels, asRead(s.node).Spec.Taints))
				assert.Equal(t, "linux", s.node.Labels["kubernetes.io/os"])
			} else {
				require.EqualError(t, err, test.err)
			}
			if test.is != nil {
				require.ErrorIs(t, err, test.is)
			} else if test.err != "" {
				var status apierrors.APIStatus
				require.ErrorAs(t, err, &status, "the server's answer")
			}
			assert.Equal(t, test.requests, strings.Join(s.requests, " "))
			assert.Equal(t, test.retried, retried)
			var keys []string
			for _, taint := range s.node.Spec.Taints {
				keys = append(keys, taint.Key)
			}
			assert.Equal(t, test.taints, strings.Join(keys, " "))
		})
	}
}

func TestReleaseKeepsForeignAnnotation(t *testing.T) {
	s := newServer(t, newNode())
	s.patching = func(n int, _ http.ResponseWriter) bool {
		if n == 1 {
			s.change(func(node *corev1.Node) { node.Annotations = map[string]string{"foreign": "kept"} })
		}
		return false
	}
	p := &Patcher{Node: s.client, Timeout: time.Minute, Deadline: time.Hour}
	require.NoError(t, release(t.Context(), p, asRead(newNode()), keys))
	assert.Equal(t, []string{"PATCH", "GET", "PATCH"}, s.requests)
	assert.Equal(t, map[string]string{"foreign": "kept", Annotation: "{}"}, s.node.Annotations)
}

func release(ctx context.Context, p *Patcher, base *Node, k Keys) error {
	_, _, err := p.Release(ctx, base, Release{Keys: k, Value: fixed("{}")})
	return err
}

// nodeFuncs is a Node for what depends on time: under synctest there is no network.
type nodeFuncs struct {
	get   func(context.Context) (*corev1.Node, error)
	patch func(context.Context, []byte) error
}

func (n nodeFuncs) Get(ctx context.Context) (*Node, error) {
	node, err := n.get(ctx)
	if err != nil {
		return nil, err
	}
	return asRead(node), nil
}

func (n nodeFuncs) Patch(ctx context.Context, patch []byte) (*Node, error) {
	if err := n.patch(ctx, patch); err != nil {
		return nil, err
	}
	return &Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{keys.Label: keys.LabelValue}}}, nil
}

var errConflict = apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, "node1.example", errors.New("changed"))

func TestReleaseUntilDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		patches, gets, retries := 0, 0, 0
		p := &Patcher{
			Timeout: 3 * time.Second, Deadline: 30 * time.Second, Retried: func(error) { retries++ },
			Node: nodeFuncs{
				get:   func(context.Context) (*corev1.Node, error) { gets++; return newNode(), nil },
				patch: func(context.Context, []byte) error { patches++; return errConflict },
			},
		}
		start := time.Now()
		err := release(t.Context(), p, asRead(newNode()), keys)
		require.EqualError(t, err, `patch of node node1.example: Operation cannot be fulfilled on nodes "node1.example": changed; cannot read the node again: context deadline exceeded`)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, errConflict)
		assert.Equal(t, 30*time.Second, time.Since(start))
		assert.Equal(t, patches, gets+1)
		assert.Equal(t, retries, gets)
		// Doubling from 20 ms to 2 s, each half as long again or half as short.
		assert.GreaterOrEqual(t, patches, 12)
		assert.LessOrEqual(t, patches, 45)
	})
}

func TestReleaseReadsUntilDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		patches := 0
		p := &Patcher{
			Timeout: 3 * time.Second, Deadline: 30 * time.Second, Retried: func(error) { t.Error("retried") },
			Node: nodeFuncs{
				get:   func(context.Context) (*corev1.Node, error) { return nil, errors.New("no route to host") },
				patch: func(context.Context, []byte) error { patches++; return errConflict },
			},
		}
		start := time.Now()
		err := release(t.Context(), p, asRead(newNode()), keys)
		require.EqualError(t, err, `patch of node node1.example: Operation cannot be fulfilled on nodes "node1.example": changed; cannot read the node again: no route to host`)
		assert.Equal(t, 30*time.Second, time.Since(start))
		assert.Equal(t, 1, patches)
	})
}

func TestReleaseLimitsEachRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []string
		hang := func(what string) func(context.Context) error {
			return func(ctx context.Context) error {
				start := time.Now()
				<-ctx.Done()
				asked = append(asked, what+" "+time.Since(start).String())
				return ctx.Err()
			}
		}
		get, patch := hang("get"), hang("patch")
		p := &Patcher{
			Timeout: 3 * time.Second, Deadline: 5 * time.Second, Retried: func(error) { t.Error("retried") },
			Node: nodeFuncs{
				get:   func(ctx context.Context) (*corev1.Node, error) { return nil, get(ctx) },
				patch: func(ctx context.Context, _ []byte) error { return patch(ctx) },
			},
		}
		start := time.Now()
		err := release(t.Context(), p, asRead(newNode()), keys)
		require.EqualError(t, err, "patch of node node1.example: no answer in time: context deadline exceeded; cannot read the node again: no answer in time: context deadline exceeded")
		assert.Equal(t, 5*time.Second, time.Since(start))
		require.Len(t, asked, 2)
		assert.Equal(t, "patch 3s", asked[0])
		assert.Regexp(t, `^get 1\.9[0-9]*s$`, asked[1], "what is left of the deadline after a short pause")
	})
}

func TestReleaseCancelled(t *testing.T) {
	for name, test := range map[string]struct {
		before  bool // cancelled before Apply
		answer  error
		err     string
		patches int
	}{
		"before anything was sent":                {before: true, err: "context canceled"},
		"patch on its way is applied":             {patches: 1},
		"patch on its way is refused as conflict": {answer: errConflict, patches: 1, err: `patch of node node1.example: Operation cannot be fulfilled on nodes "node1.example": changed; cannot read the node again: context canceled`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				patches := 0
				p := &Patcher{
					Timeout: 3 * time.Second, Deadline: 30 * time.Second, Retried: func(error) { t.Error("retried") },
					Node: nodeFuncs{
						get: func(context.Context) (*corev1.Node, error) { t.Error("read"); return newNode(), nil },
						patch: func(ctx context.Context, _ []byte) error {
							patches++
							cancel()
							select {
							case <-ctx.Done():
								t.Error("the request was cut off")
							case <-time.After(time.Second): // the server's time, all of it virtual
							}
							return test.answer
						},
					},
				}
				if test.before {
					cancel()
				}
				start := time.Now()
				err := release(ctx, p, asRead(newNode()), keys)
				if test.err == "" {
					require.NoError(t, err)
				} else {
					require.EqualError(t, err, test.err)
					require.ErrorIs(t, err, context.Canceled)
				}
				assert.Equal(t, test.patches, patches)
				assert.Equal(t, time.Duration(test.patches)*time.Second, time.Since(start))
			})
		})
	}
}

// The patch leaves the taint that came meanwhile, and the label that it puts on has this pod deleted: nobody else would take it off.
func TestReleaseCancelledByItsOwnLabel(t *testing.T) {
	s := newServer(t, newNode())
	ctx, cancel := context.WithCancel(t.Context())
	s.patching = func(n int, _ http.ResponseWriter) bool {
		if n == 1 {
			s.change(func(node *corev1.Node) {
				node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: keys.TaintKey, Effect: corev1.TaintEffectNoExecute})
			})
			cancel()
		}
		return false
	}
	p := &Patcher{Node: s.client, Timeout: 3 * time.Second, Deadline: 30 * time.Second}
	require.NoError(t, release(ctx, p, asRead(newNode()), keys))
	assert.Equal(t, []string{"PATCH", "GET", "PATCH"}, s.requests)
	assert.True(t, keys.IsVerified(s.node.Labels, asRead(s.node).Spec.Taints))
}

func TestReleaseCancelledWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		gets := 0
		p := &Patcher{
			Timeout: 3 * time.Second, Deadline: 30 * time.Second,
			Node: nodeFuncs{
				get: func(context.Context) (*corev1.Node, error) {
					gets++
					cancel()
					return newNode(), nil
				},
				patch: func(context.Context, []byte) error {
					if gets > 0 {
						t.Error("sent after the end")
					}
					return errConflict
				},
			},
		}
		require.Equal(t, context.Canceled, release(ctx, p, asRead(newNode()), keys))
		assert.Equal(t, 1, gets)
	})
}

// What answers in the API server's place is not taken for a Node without taints.
func TestClientGetsSomethingElse(t *testing.T) {
	const another = "it is not this Node"
	for body, want := range map[string]string{
		`[]`:                                    "json: cannot unmarshal array into Go value of type nodepatch.Node",
		`{`:                                     "unexpected end of JSON input",
		`{}`:                                    another,
		`{"kind":"Node"}`:                       another,
		`{"metadata":{"name":"node1.example"}}`: another,
		`{"metadata":{"name":"node2","uid":"uid-2"}}`: another,
	} {
		t.Run(body, func(t *testing.T) {
			s := newServer(t, newNode())
			s.getting = func(_ int, w http.ResponseWriter) bool {
				w.Header().Set("Content-Type", "application/json")
				_, err := w.Write([]byte(body))
				assert.NoError(t, err)
				return true
			}
			_, err := s.client.Get(t.Context())
			require.EqualError(t, err, "node node1.example: cannot read the API server's answer: "+want)
		})
	}
}

// A webhook, a policy or a controller that puts the taint back each time: three patches, and an error that names it.
func TestReleaseGivesUpWhereTheTaintComesBack(t *testing.T) {
	old, later := metav1.NewTime(time.Unix(1000, 0)), metav1.NewTime(time.Unix(2000, 0))
	entry := func(manager string, at metav1.Time) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Time: &at, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:taints":{}}}`)}
	}
	for name, test := range map[string]struct {
		managers []metav1.ManagedFieldsEntry
		want     string
	}{
		"nobody has written": {[]metav1.ManagedFieldsEntry{entry("kubelet", old), entry("kube-node-ready", later)},
			"an admission webhook or policy puts it back"},
		"somebody has": {[]metav1.ManagedFieldsEntry{entry("kubelet", old), entry("tainter", later), entry("kube-node-ready", later)},
			`"tainter" puts it back (metadata.managedFields)`},
		"kubelet, again": {[]metav1.ManagedFieldsEntry{entry("kubelet", later)}, `"kubelet" puts it back (metadata.managedFields)`},
	} {
		t.Run(name, func(t *testing.T) {
			node := newNode()
			node.ManagedFields = []metav1.ManagedFieldsEntry{entry("kubelet", old)}
			s := newServer(t, node)
			s.patched = func(node *corev1.Node) {
				node.Spec.Taints = append(node.Spec.Taints, ours(corev1.TaintEffectNoSchedule))
				node.ManagedFields = test.managers
			}
			ctx, cancel := context.WithCancel(t.Context())
			s.patching = func(int, http.ResponseWriter) bool { cancel(); return false } // the label ends the pod
			err := release(ctx, newPatcher(s), asRead(s.node), keys)
			require.EqualError(t, err, "node node1.example: the taint is back after each of 3 patches: "+test.want)
			assert.Equal(t, []string{"PATCH", "GET", "PATCH", "GET", "PATCH"}, s.requests)
		})
	}
}

func TestRemoveAgain(t *testing.T) {
	labelled := func(node *corev1.Node) { node.Labels[keys.Label] = keys.LabelValue }
	for name, test := range map[string]struct {
		edit     []func(*corev1.Node)
		race     func(*corev1.Node) // between read and patch
		requests string
		removed  int
		err      string
		left     bool // the startup taint
	}{
		"taint is back":    {edit: []func(*corev1.Node){labelled}, requests: "GET PATCH", removed: 1},
		"nothing to do":    {edit: []func(*corev1.Node){labelled, drop(ourKey)}, requests: "GET"},
		"label is gone":    {requests: "GET", left: true},
		"another node":     {edit: []func(*corev1.Node){labelled, func(n *corev1.Node) { n.UID = "uid-2" }}, requests: "GET", left: true},
		"is being deleted": {edit: []func(*corev1.Node){labelled, func(n *corev1.Node) { n.DeletionTimestamp = new(metav1.Now()) }}, requests: "GET", left: true},
		"label is removed between": {edit: []func(*corev1.Node){labelled}, race: func(n *corev1.Node) { delete(n.Labels, keys.Label) },
			requests: "GET PATCH GET", left: true},
	} {
		t.Run(name, func(t *testing.T) {
			node := newNode()
			for _, edit := range test.edit {
				edit(node)
			}
			s := newServer(t, node)
			s.patching = func(n int, _ http.ResponseWriter) bool {
				if n == 1 && test.race != nil {
					s.change(test.race)
				}
				return false
			}
			_, removed, err := newPatcher(s).RemoveAgain(t.Context(), "uid-1", keys)
			require.NoError(t, err)
			assert.Len(t, removed, test.removed)
			assert.Equal(t, test.requests, strings.Join(s.requests, " "))
			assert.Equal(t, test.left, len(keys.StartupTaints(asRead(s.node).Spec.Taints)) > 0)
		})
	}
}
