package worker

import (
	"context"
	cryptorand "crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

// nodeLabel selects the worker of a node, if the node's name is a valid label value.
const nodeLabel = "node-ready/node"

// maxEndpoints is how many endpoints of the DNS service a worker gets, of which it connects to eight. The kernel limits an
// environment variable to 128 KiB (MAX_ARG_STRLEN).
const maxEndpoints = 32

// pods returns the workers of a node in the cache.
func (r *Reconciler) pods(ctx context.Context, node string) (pods []*corev1.Pod, err error) {
	var list corev1.PodList
	err = r.Client.List(ctx, &list, client.MatchingFields{nodeIndex: node}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("workers in the cache: %w", err)
	}
	for i := range list.Items {
		pods = append(pods, &list.Items[i])
	}
	return pods, nil
}

// create creates a worker if there is a slot, and returns when to reconcile again although nothing changes. A node without a
// slot is queued once it has got one.
func (r *Reconciler) create(ctx context.Context, node *corev1.Node, wanted creation) (wait time.Duration, err error) {
	name, key := r.Settings.newName(), cryptorand.Text()
	if !r.slots.acquire(node.Name, name, wanted.attempt) {
		return 0, nil
	}
	endpoints, err := r.Endpoints(ctx)
	if err != nil {
		r.slots.notCreated(name, true)
		if errors.Is(err, errNoEndpoints) {
			return noEndpointsFor, nil
		}
		return 0, fmt.Errorf("worker for node %s: %w", node.Name, err)
	}
	r.memories.workerCreated(node.Name, name, key)
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	// AlreadyExists means that client-go has repeated the request: no other pod has this name.
	if err = client.IgnoreAlreadyExists(r.Client.Create(ctx, r.Settings.newPod(name, key, node, wanted, endpoints))); err != nil {
		answer, isAnswer := errors.AsType[*apierrors.StatusError](err)
		isRefused := isAnswer && answer.ErrStatus.Code < http.StatusInternalServerError
		if r.slots.notCreated(name, isRefused); isRefused { // otherwise it may exist
			r.memories.raiseFate(node.Name, name, deleted)
		}
		return 0, fmt.Errorf("worker for node %s: %w", node.Name, err)
	}
	r.Log.Info("worker created", "node", node.Name, "worker", name, "attempt", wanted.attempt)
	return cacheDelay, nil // no event comes if the worker is deleted before the cache shows it
}

// deletePod deletes a worker, now or later. Its verdict no longer counts, even if it cannot be deleted.
func (r *Reconciler) deletePod(ctx context.Context, node string, pod *corev1.Pod) error {
	r.memories.raiseFate(node, pod.Name, voided)
	// The releases of nodes that wait for a slot come before the deletion of workers that have just released a node.
	if r.slots.isContended() && r.Now().Since(r.memories.releasedAt(node)) < time.Minute {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	err := r.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("worker %s: %w", pod.Name, err)
	}
	r.memories.raiseFate(node, pod.Name, deleted)
	r.Log.Debug("worker deleted", "node", node, "worker", pod.Name)
	return nil
}

// newName returns the name of a new worker. No name is used twice, so that no worker is mistaken for another.
func (s Settings) newName() string { return s.AgentName + "-worker-" + rand.String(10) }

// newPod returns a worker for node: the chart's template and the facts that only the controller has. A worker sends no request
// to the API server, so the controller passes it the endpoints and the domain of the cluster's DNS.
func (s Settings) newPod(name, key string, node *corev1.Node, wanted creation, endpoints []string) *corev1.Pod {
	template := s.Template.DeepCopy()
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Name, pod.Namespace = name, s.Namespace
	yes, no := true, false
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID,
		Controller: &yes, BlockOwnerDeletion: &no}} // blocking needs the right to change the finalizers of nodes
	if len(validation.IsValidLabelValue(node.Name)) == 0 {
		metav1.SetMetaDataLabel(&pod.ObjectMeta, nodeLabel, node.Name)
	}
	for key, value := range map[string]string{
		fleet.AttemptAnnotation:  strconv.Itoa(wanted.attempt),
		fleet.NodeUIDAnnotation:  string(node.UID),
		fleet.BootIDAnnotation:   node.Status.NodeInfo.BootID,
		fleet.TemplateAnnotation: s.templateHash(),
		fleet.FirstAnnotation:    wanted.first,
	} {
		if value != "" {
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, key, value)
		}
	}
	pod.Spec.RestartPolicy, pod.Spec.AutomountServiceAccountToken = corev1.RestartPolicyNever, &no
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{
				Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node.Name},
			}},
		}}},
	}}
	endpoints = checks.SampleEndpoints(endpoints, node.Name, maxEndpoints)
	for i := range pod.Spec.Containers {
		env := slices.DeleteFunc(pod.Spec.Containers[i].Env, func(one corev1.EnvVar) bool {
			return one.Name == "DNS_ENDPOINTS" || one.Name == "CLUSTER_DOMAIN" || one.Name == "VERDICT_KEY"
		})
		pod.Spec.Containers[i].Env = append(env, corev1.EnvVar{Name: "DNS_ENDPOINTS", Value: strings.Join(endpoints, ",")},
			corev1.EnvVar{Name: "CLUSTER_DOMAIN", Value: s.ClusterDomain}, corev1.EnvVar{Name: "VERDICT_KEY", Value: key})
	}
	return pod
}

// isWorker distinguishes a worker from another pod with the labels of workers.
func isWorker(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.Kind == "Node" && string(owner.UID) == pod.Annotations[fleet.NodeUIDAnnotation]
}

// templateHash distinguishes workers of an earlier template from those of this one.
func (s Settings) templateHash() string {
	text, _ := json.Marshal(s.Template) // cannot fail, because it was read from YAML
	hash := fnv.New64a()
	_, _ = hash.Write(text)
	return strconv.FormatUint(hash.Sum64(), 16)
}
