//go:build !race

package simulation

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// The API server: objects in memory, with their history, so that watches and caches may be behind. Everything is under the world's
// lock, and nobody sleeps with it.

// resources are those that the server has, by their path without names.
var resources = map[string]struct{ kind, groupVersion string }{
	"nodes": {"Node", "v1"}, "pods": {"Pod", "v1"}, "configmaps": {"ConfigMap", "v1"}, "events": {"Event", "v1"},
	"leases": {"Lease", "coordination.k8s.io/v1"}, "endpointslices": {"EndpointSlice", "discovery.k8s.io/v1"},
	"nodeclaims": {"NodeClaim", "karpenter.sh/v1"},
}

const (
	keepsHistory = 15 * time.Minute
	namespace    = "kube-system"
)

// version is one object after a change; body is nil once it is deleted.
type version struct {
	at   time.Time
	rv   int
	key  string // namespace/name
	body []byte
	last []byte // before a deletion

	typed any // the body, once somebody has decoded it
}

// store is everything that the API server knows.
type store struct {
	rv      int
	uids    int
	now     map[string]map[string]*version // by resource and key
	history map[string][]*version          // by resource, oldest first
	changed chan struct{}                  // closed at the next change
}

func newStore() store {
	s := store{rv: 1000, now: make(map[string]map[string]*version), history: make(map[string][]*version), changed: make(chan struct{})}
	for resource := range resources {
		s.now[resource] = make(map[string]*version)
	}
	return s
}

func (s *store) put(resource, key string, body, last []byte) {
	v := &version{at: time.Now(), rv: s.rv, key: key, body: body, last: last}
	s.now[resource][key] = v
	if body == nil {
		delete(s.now[resource], key)
	}
	history := append(s.history[resource], v)
	if len(history)%256 == 0 {
		history = slices.DeleteFunc(history, func(v *version) bool { return time.Since(v.at) > keepsHistory })
	}
	s.history[resource] = history
	close(s.changed)
	s.changed = make(chan struct{})
}

// asOf returns the objects of a resource as they were at a time, and the resourceVersion of then.
func (s *store) asOf(resource string, at time.Time) (objects map[string]*version, rv int) {
	objects, rv = maps.Clone(s.now[resource]), s.rv
	for _, v := range slices.Backward(s.history[resource]) {
		if !v.at.After(at) {
			break
		}
		rv = v.rv - 1
		delete(objects, v.key)
		for _, before := range slices.Backward(s.history[resource]) {
			if before.key == v.key && !before.at.After(at) {
				if before.body != nil {
					objects[v.key] = before
				}
				break
			}
		}
	}
	return objects, rv
}

// answer is what a request gets.
type answer struct {
	code  int
	body  []byte
	watch *watch
	after int // seconds: Retry-After
}

func status(code int, reason metav1.StatusReason, format string, args ...any) answer {
	body, _ := json.Marshal(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(code),
		Reason: reason, Message: fmt.Sprintf(format, args...)})
	return answer{code: code, body: body}
}

// request is one request to an object, a list or a watch.
type request struct {
	verb, resource, namespace, name, sub string
	query                                url.Values
	patch, sent                          string // the content type of a patch, and the body
	from                                 *process
	at                                   time.Time       // when it was sent
	read                                 map[string]bool // of a deletion: what its process had read then
}

func (q request) key() string { return q.namespace + "/" + q.name }

func (q request) String() string {
	return strings.TrimRight(strings.Join([]string{q.verb, q.resource, q.name, q.sub}, " "), " ")
}

func (q request) writes() bool { return q.verb != http.MethodGet }

// parse returns the request, or the answer to one for discovery.
func parse(from *process, r *http.Request) (request, *answer) {
	q := request{verb: r.Method, query: r.URL.Query(), patch: r.Header.Get("Content-Type"), from: from}
	if r.Body != nil {
		body, _ := io.ReadAll(r.Body)
		q.sent = string(body)
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	prefix := min(len(parts), map[string]int{"api": 2, "apis": 3}[parts[0]])
	groupVersion, rest := strings.Join(parts[1:max(1, prefix)], "/"), parts[prefix:]
	if len(rest) == 0 {
		a := discovery(parts[0], groupVersion)
		return q, &a
	}
	if rest[0] == "namespaces" && len(rest) > 2 {
		q.namespace, rest = rest[1], rest[2:]
	}
	rest = append(rest, "", "")
	q.resource, q.name, q.sub = rest[0], rest[1], rest[2]
	if _, found := resources[q.resource]; !found {
		a := status(http.StatusNotFound, metav1.StatusReasonNotFound, "there is no %s", q.resource)
		return q, &a
	}
	return q, nil
}

func discovery(root, groupVersion string) answer {
	var object any
	switch {
	case root == "api" && groupVersion == "":
		object = metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}
	case root == "apis" && !strings.Contains(groupVersion, "/"):
		list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
		for _, gv := range []string{"coordination.k8s.io/v1", "discovery.k8s.io/v1", "events.k8s.io/v1", "karpenter.sh/v1"} {
			group, v, _ := strings.Cut(gv, "/")
			version := metav1.GroupVersionForDiscovery{GroupVersion: gv, Version: v}
			one := metav1.APIGroup{TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}, Name: group,
				Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version}
			if list.Groups = append(list.Groups, one); group == groupVersion {
				object = one
			}
		}
		if groupVersion == "" {
			object = list
		}
	default:
		list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: groupVersion}
		for name, resource := range resources {
			if resource.groupVersion == groupVersion || name == "events" && groupVersion == "events.k8s.io/v1" {
				list.APIResources = append(list.APIResources, metav1.APIResource{Name: name, Kind: resource.kind,
					Namespaced: name != "nodes" && name != "nodeclaims", Verbs: metav1.Verbs{"get", "list", "watch"}})
			}
		}
		object = list
	}
	if object == nil {
		return status(http.StatusNotFound, metav1.StatusReasonNotFound, "no such group")
	}
	body, _ := json.Marshal(object)
	return answer{code: http.StatusOK, body: body}
}

// handle answers a request. The world's lock is held.
func (w *world) handle(q request) answer {
	switch {
	case q.verb == http.MethodGet && q.query.Get("watch") != "":
		return answer{code: http.StatusOK, watch: &watch{w: w, q: q}}
	case q.verb == http.MethodGet && q.name == "":
		return w.list(q)
	case q.verb == http.MethodGet:
		objects := w.now[q.resource]
		if lag := w.lag(q); q.query.Get("resourceVersion") == "0" && lag > 0 {
			objects, _ = w.asOf(q.resource, time.Now().Add(-lag))
		}
		if v, found := objects[q.key()]; found {
			return answer{code: http.StatusOK, body: v.body}
		}
		return notFound(q)
	case q.verb == http.MethodPost:
		return w.create(q)
	default:
		return w.change(q)
	}
}

func notFound(q request) answer {
	return status(http.StatusNotFound, metav1.StatusReasonNotFound, "%s %q not found", q.resource, q.name)
}

func conflict(q request, format string, args ...any) answer {
	return status(http.StatusConflict, metav1.StatusReasonConflict, q.resource+" "+q.name+": "+format, args...)
}

func (w *world) list(q request) answer {
	objects, rv := w.now[q.resource], w.rv
	if lag := w.lag(q); q.query.Get("resourceVersion") == "0" && lag > 0 {
		objects, rv = w.asOf(q.resource, time.Now().Add(-lag))
	}
	var items []string
	for _, key := range slices.Sorted(maps.Keys(objects)) {
		if q.selects(objects[key]) {
			items = append(items, string(objects[key].body))
			if q.resource == "nodes" {
				w.judge.sent(q.from, typed[corev1.Node](objects[key]))
			}
		}
	}
	of := resources[q.resource]
	return answer{code: http.StatusOK, body: fmt.Appendf(nil, `{"kind":"%sList","apiVersion":%q,"metadata":{"resourceVersion":"%d"},"items":[%s]}`,
		of.kind, of.groupVersion, rv, strings.Join(items, ","))}
}

// selects reports whether a list or watch is about an object.
func (q request) selects(v *version) bool {
	body := v.body
	if body == nil {
		body = v.last
	}
	if in, _, _ := strings.Cut(v.key, "/"); q.namespace != "" && in != q.namespace {
		return false
	}
	label, field := q.query.Get("labelSelector"), q.query.Get("fieldSelector")
	if label == "" && field == "" {
		return true
	}
	var object struct {
		Metadata       struct{ Labels map[string]string }
		Spec           struct{ NodeName string }
		InvolvedObject struct{ Kind, UID string }
	}
	_ = json.Unmarshal(body, &object)
	selector, _ := labels.Parse(label)
	name, value, _ := strings.Cut(field, "=")
	is := map[string]string{"spec.nodeName": object.Spec.NodeName, "involvedObject.kind": object.InvolvedObject.Kind,
		"involvedObject.uid": object.InvolvedObject.UID, "": ""}
	return (label == "" || selector.Matches(labels.Set(object.Metadata.Labels))) && is[name] == value
}

// meta is what the server itself cares about.
type meta struct {
	metav1.TypeMeta
	metav1.ObjectMeta `json:"metadata"`
}

func (w *world) create(q request) answer {
	object := make(map[string]any)
	if err := json.Unmarshal([]byte(q.sent), &object); err != nil {
		return status(http.StatusBadRequest, metav1.StatusReasonBadRequest, "%v", err)
	}
	metadata, _ := object["metadata"].(map[string]any)
	q.name, _ = metadata["name"].(string)
	if _, found := w.now[q.resource][q.key()]; found {
		return status(http.StatusConflict, metav1.StatusReasonAlreadyExists, "%s %q already exists", q.resource, q.name)
	}
	note, _ := object["note"].(string)
	message, _ := object["message"].(string)
	if q.resource == "events" && max(len(note), len(message)) > 1024 {
		w.fail("", ruleRest, "an Event is longer than the API server allows: %s%s", note, message)
	}
	w.uids++
	metadata["uid"], metadata["creationTimestamp"] = fmt.Sprint("uid-", w.uids), metav1.NewTime(w.serverTime())
	if q.namespace != "" {
		metadata["namespace"] = q.namespace
	}
	if object["kind"] == nil {
		object["kind"], object["apiVersion"] = resources[q.resource].kind, resources[q.resource].groupVersion
	}
	return w.write(q, object, nil)
}

// change is an update, a patch or a deletion.
func (w *world) change(q request) answer {
	before, found := w.now[q.resource][q.key()]
	if !found {
		return notFound(q)
	}
	var is meta
	_ = json.Unmarshal(before.body, &is)
	if q.verb == http.MethodDelete {
		var options metav1.DeleteOptions
		_ = json.Unmarshal([]byte(q.sent), &options)
		if p := options.Preconditions; p != nil && (p.UID != nil && *p.UID != is.UID || p.ResourceVersion != nil && *p.ResourceVersion != is.ResourceVersion) {
			return conflict(q, "precondition")
		}
		return w.delete(q, before, is)
	}
	after, err := q.apply(before.body)
	if err != nil {
		return status(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "%v", err)
	}
	object := make(map[string]any)
	if err := json.Unmarshal(after, &object); err != nil {
		return status(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "%v", err)
	}
	metadata, _ := object["metadata"].(map[string]any)
	if rv, _ := metadata["resourceVersion"].(string); rv != "" && rv != is.ResourceVersion {
		return conflict(q, "the object has been modified")
	}
	if uid, _ := metadata["uid"].(string); uid != "" && uid != string(is.UID) {
		return conflict(q, "precondition: uid")
	}
	metadata["uid"], metadata["creationTimestamp"] = is.UID, is.CreationTimestamp
	return w.write(q, object, before.body)
}

// apply returns an object after an update or a patch.
func (q request) apply(before []byte) ([]byte, error) {
	switch q.patch {
	case string(types.JSONPatchType):
		patch, err := jsonpatch.DecodePatch([]byte(q.sent))
		if err != nil {
			return nil, err
		}
		return patch.Apply(before)
	case string(types.MergePatchType):
		return jsonpatch.MergePatch(before, []byte(q.sent))
	case string(types.StrategicMergePatchType):
		return strategicpatch.StrategicMergePatch(before, []byte(q.sent), corev1.Node{})
	default:
		return []byte(q.sent), nil
	}
}

// write stores an object that was created or changed; before is nil if it is new.
func (w *world) write(q request, object map[string]any, before []byte) answer {
	if before != nil && q.from != nil && (q.resource == "nodes" || q.resource == "pods" || q.resource == "nodeclaims") {
		was := make(map[string]any)
		_ = json.Unmarshal(before, &was)
		if q.sub == "status" {
			object["spec"] = was["spec"]
		} else {
			object["status"] = was["status"]
		}
	}
	body, err := encode(q.resource, object)
	if err != nil {
		return status(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "%v", err)
	}
	if bytes.Equal(body, before) {
		return answer{code: http.StatusOK, body: body}
	}
	w.rv++
	metadata, _ := object["metadata"].(map[string]any)
	metadata["resourceVersion"] = strconv.Itoa(w.rv)
	body, _ = encode(q.resource, object)
	w.judge.write(q, before, body)
	w.put(q.resource, q.key(), body, nil)
	w.notice(q)
	if before == nil {
		return answer{code: http.StatusCreated, body: body}
	}
	return answer{code: http.StatusOK, body: body}
}

// encode drops what the real server would: fields that it does not know, and empty lists.
func encode(resource string, object map[string]any) ([]byte, error) {
	text, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	switch resource {
	case "nodes":
		var node corev1.Node
		if err := json.Unmarshal(text, &node); err != nil {
			return nil, err
		}
		seen := make(map[string]bool)
		for _, taint := range node.Spec.Taints {
			id := taint.Key + ":" + string(taint.Effect)
			if seen[id] {
				return nil, fmt.Errorf("duplicate taint %s", id)
			}
			seen[id] = true
		}
		return json.Marshal(node)
	case "pods":
		var pod corev1.Pod
		if err := json.Unmarshal(text, &pod); err != nil {
			return nil, err
		}
		return json.Marshal(pod)
	}
	return text, nil
}

// delete removes an object, or marks it: a pod on a machine goes when kubelet has ended it, and others when their finalizers are gone.
func (w *world) delete(q request, before *version, is meta) answer {
	runs := q.resource == "pods" && w.runsSomewhere(before.body)
	if (runs || len(is.Finalizers) > 0) && q.from != nil {
		if is.DeletionTimestamp != nil {
			return answer{code: http.StatusOK, body: before.body}
		}
		object := make(map[string]any)
		_ = json.Unmarshal(before.body, &object)
		metadata, _ := object["metadata"].(map[string]any)
		metadata["deletionTimestamp"] = metav1.NewTime(w.serverTime())
		w.rv++
		metadata["resourceVersion"] = strconv.Itoa(w.rv)
		body, _ := encode(q.resource, object)
		w.judge.write(q, before.body, body)
		w.put(q.resource, q.key(), body, nil)
		w.notice(q)
		return answer{code: http.StatusOK, body: body}
	}
	w.rv++
	w.judge.write(q, before.body, nil)
	w.put(q.resource, q.key(), nil, before.body)
	w.notice(q)
	return answer{code: http.StatusOK, body: before.body}
}

// watch is one watch while it lasts.
type watch struct {
	w *world
	q request
}

// run writes events until the client leaves, the path breaks, or the time of the watch is over.
func (o *watch) run(done <-chan struct{}, out *io.PipeWriter) {
	w, q := o.w, o.q
	defer func() { _ = out.Close() }()
	seconds, _ := strconv.Atoi(q.query.Get("timeoutSeconds"))
	over := time.After(time.Duration(max(seconds, 60)) * time.Second)
	since, _ := strconv.Atoi(q.query.Get("resourceVersion"))
	send := func(kind string, body []byte) bool {
		_, err := fmt.Fprintf(out, `{"type":%q,"object":%s}`+"\n", kind, body)
		return err == nil
	}
	w.mu.Lock()
	objects, rv := w.asOf(q.resource, time.Now().Add(-w.lag(q)))
	if since > 0 {
		objects, rv = nil, since
	}
	w.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(objects)) {
		if q.selects(objects[key]) && !send("ADDED", objects[key].body) {
			return
		}
		w.sees(q, objects[key])
	}
	if q.query.Get("sendInitialEvents") == "true" {
		of := resources[q.resource]
		if !send("BOOKMARK", fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,"metadata":{"resourceVersion":"%d","annotations":{"k8s.io/initial-events-end":"true"}}}`,
			of.kind, of.groupVersion, rv)) {
			return
		}
	}
	for {
		w.mu.Lock()
		lag, broken, changed := w.lag(q), w.isCut(q.from), w.changed
		var next *version
		history := w.history[q.resource]
		i, _ := slices.BinarySearchFunc(history, rv+1, func(v *version, rv int) int { return v.rv - rv })
		if i < len(history) {
			next = history[i]
		}
		w.mu.Unlock()
		var due <-chan time.Time
		switch {
		case broken: // HTTP/2 notices after 30 s and 15 s
			select {
			case <-done:
			case <-time.After(45 * time.Second):
			}
			return
		case next != nil && time.Since(next.at) >= lag:
			rv = next.rv
			if !q.selects(next) {
				continue
			}
			kind, body := "MODIFIED", next.body // an informer takes what it does not know for new
			if body == nil {
				kind, body = "DELETED", next.last
			}
			if !send(kind, body) {
				return
			}
			w.sees(q, next)
			continue
		case next != nil:
			due = time.After(lag - time.Since(next.at))
		}
		select {
		case <-done:
			return
		case <-over:
			return
		case <-due:
		case <-changed:
		}
	}
}

// sees notes that a controller is sent a Node.
func (w *world) sees(q request, v *version) {
	if q.resource != "nodes" || v.body == nil || !q.from.controller {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.judge.sent(q.from, typed[corev1.Node](v))
}
