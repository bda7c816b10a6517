package harness

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// LogLine is one line of the agent's log.
type LogLine struct {
	Level, Msg, Check, Error, Remedy, Reason, Detail, Warning, Took string

	Attempt     int
	RetryIn     string `json:"retry_in"`
	NextRoundIn string `json:"next_round_in"`
	Time        time.Time
}

// Logs reads the log of an agent's pod.
func (c *Cluster) Logs(ctx context.Context, pod corev1.Pod) ([]LogLine, error) {
	text, err := c.Kube.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	return parseLog(string(text))
}

// LogsOnNode reads the log of an agent's pod from the node's disk, for when there is no API.
func (c *Cluster) LogsOnNode(ctx context.Context, pod corev1.Pod) ([]LogLine, error) {
	path := fmt.Sprintf("/var/log/pods/%s_%s_%s/agent/0.log", pod.Namespace, pod.Name, pod.UID)
	text, err := c.Script(ctx, "enter", pod.Spec.NodeName, "cat", path)
	if err != nil {
		return nil, err
	}
	var plain strings.Builder
	for line := range strings.Lines(text) { // as the CRI writes it: time, stream, tag, text
		if fields := strings.SplitN(line, " ", 4); len(fields) == 4 {
			plain.WriteString(fields[3])
		}
	}
	return parseLog(plain.String())
}

// AwaitLine waits for a line of a log.
func AwaitLine(ctx context.Context, read func() ([]LogLine, error), wanted func(LogLine) bool) (found LogLine, err error) {
	err = Until(ctx, func() (bool, error) {
		lines, err := read()
		if err != nil {
			return false, nil // the container is not there yet
		}
		i := slices.IndexFunc(lines, wanted)
		if i >= 0 {
			found = lines[i]
		}
		return i >= 0, nil
	})
	if err != nil {
		err = fmt.Errorf("no such line in the log: %w", err)
	}
	return found, err
}

// isKlog matches what client-go itself logs, when an answer of the API server ends early.
var isKlog = regexp.MustCompile(`^[IWEF]\d{4} `)

func parseLog(text string) ([]LogLine, error) {
	var lines []LogLine
	for raw := range strings.Lines(text) {
		var line LogLine
		if isKlog.MatchString(raw) {
			continue
		}
		if err := json.Unmarshal([]byte(raw), &line); err != nil {
			return nil, fmt.Errorf("log line %q: %w", raw, err)
		}
		lines = append(lines, line)
	}
	return lines, nil
}

// Get asks a running pod's HTTP server by way of the API server. The status is that of the pod; a body comes with 200.
func (c *Cluster) Get(ctx context.Context, pod corev1.Pod, path string) (body string, status int, err error) {
	raw, err := c.Kube.CoreV1().RESTClient().Get().Namespace(pod.Namespace).Resource("pods").Name(pod.Name + ":8080").
		SubResource("proxy").Suffix(path).Do(ctx).Raw()
	var failed apierrors.APIStatus
	if errors.As(err, &failed) {
		return "", int(failed.Status().Code), nil
	}
	return string(raw), http.StatusOK, err
}

// Metric reads the value of a series, written as it is in the exposition but for the label node.
func (c *Cluster) Metric(ctx context.Context, pod corev1.Pod, series string) (float64, error) {
	body, status, err := c.Get(ctx, pod, "metrics")
	if err != nil {
		return 0, err
	}
	if status != http.StatusOK {
		return 0, fmt.Errorf("/metrics of pod %s: status %d by way of the API server", pod.Name, status)
	}
	return FindMetric(body, pod.Spec.NodeName, series)
}

// FindMetric finds the value of a series in an exposition.
func FindMetric(exposition, node, series string) (float64, error) {
	name, labels, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
	if labels != "" {
		labels += ","
	}
	want := fmt.Sprintf("%s{%snode=%q} ", name, labels, node)
	for line := range strings.Lines(exposition) {
		if rest, ok := strings.CutPrefix(line, want); ok {
			return strconv.ParseFloat(strings.TrimSpace(rest), 64)
		}
	}
	return 0, fmt.Errorf("no series %s in\n%s", want, exposition)
}

// Request is one request in the API server's audit log.
type Request struct {
	Verb       string
	RequestURI string
	User       struct {
		Username string
		Extra    map[string][]string
	}
	UserAgent string
	ObjectRef struct{ Resource, Subresource, Name, Namespace string }
	Body      json.RawMessage    `json:"requestObject"` // of patches of nodes and of Events (hack/cluster/config/audit-policy.yaml)
	Response  struct{ Code int } `json:"responseStatus"`
	Received  time.Time          `json:"requestReceivedTimestamp"`
	Answered  time.Time          `json:"stageTimestamp"`
}

// Event is the Event that the request creates, the zero Event for other requests.
func (r Request) Event() (event corev1.Event) {
	if r.Verb != "create" || r.ObjectRef.Resource != "events" || json.Unmarshal(r.Body, &event) != nil {
		return corev1.Event{}
	}
	return event
}

// Pod is the name of the pod whose bound token the request came with, "" for other tokens.
func (r Request) Pod() string {
	if names := r.User.Extra["authentication.kubernetes.io/pod-name"]; len(names) == 1 {
		return names[0]
	}
	return ""
}

// Write reports whether the request changes something.
func (r Request) Write() bool { return r.Verb != "get" && r.Verb != "list" && r.Verb != "watch" }

func (r Request) String() string {
	return fmt.Sprintf("%s %s %s %d", r.Received.Format("15:04:05.000"), r.Verb, r.RequestURI, r.Response.Code)
}

// Audit returns the requests of a user that were received after since, in the order of the log. The
// API server starts a new file when one is full, and gives the full one a name with the time.
func (c *Cluster) Audit(since time.Time, user string) ([]Request, error) {
	paths, err := filepath.Glob(filepath.Join(c.Dir, "log", "audit*.log"))
	if err != nil {
		return nil, err
	}
	slices.Sort(paths) // "audit-2026-…" is before "audit.log"
	var found []Request
	for _, path := range paths {
		requests, err := auditFile(path, since, user)
		if err != nil {
			return nil, err
		}
		found = append(found, requests...)
	}
	return found, nil
}

func auditFile(path string, since time.Time, user string) ([]Request, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil || info.ModTime().Before(since) {
		return nil, err
	}
	var found []Request
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		if !strings.Contains(lines.Text(), user) {
			continue
		}
		var request Request
		if err := json.Unmarshal(lines.Bytes(), &request); err != nil {
			var syntax *json.SyntaxError
			if errors.As(err, &syntax) {
				break // the last line is being written
			}
			return nil, err
		}
		if request.User.Username == user && request.Received.After(since) {
			found = append(found, request)
		}
	}
	return found, lines.Err()
}
