package worker

import (
	"encoding/json"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

// nodeLabel lets people find a node's worker, where the node's name can be the value of a label.
const nodeLabel = "node-ready/node"

// maxEndpoints is how many endpoints of the DNS service a worker is given: it connects to eight of them. The kernel limits an
// environment variable to 128 KiB (MAX_ARG_STRLEN).
const maxEndpoints = 32

// newName returns the name of a new worker. None is used twice, so that nothing about one worker is taken for another's.
func (s Settings) newName() string { return s.AgentName + "-worker-" + rand.String(10) }

// newPod returns the worker of node: the chart's template with what only the controller knows. A worker asks the API for
// nothing, so the controller gives it the endpoints and the domain of the cluster's DNS.
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

// isWorker tells a worker from a pod that somebody has given the labels of workers.
func isWorker(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.Kind == "Node" && string(owner.UID) == pod.Annotations[fleet.NodeUIDAnnotation]
}

// templateHash tells workers of an earlier template from those of this one.
func (s Settings) templateHash() string {
	text, _ := json.Marshal(s.Template) // it was read from YAML: it cannot fail
	hash := fnv.New64a()
	_, _ = hash.Write(text)
	return strconv.FormatUint(hash.Sum64(), 16)
}
