package fleet

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Each pod is newer than all that follow it.
func TestNewerPod(t *testing.T) {
	at := time.Unix(1_800_000_000, 0)
	pod := func(name, attempt string, created time.Duration, change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(at.Add(created)),
			Annotations: map[string]string{AttemptAnnotation: attempt}}}
		change(p)
		return p
	}
	as := func(*corev1.Pod) {}
	ended := func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }
	deleted := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: at} }
	order := []*corev1.Pod{
		pod("later attempt, although the clock was set back", "2", -time.Hour, as),
		pod("created later", "1", time.Second, as),
		pod("b", "1", 0, as),
		pod("a", "1", 0, as),
		pod("ended", "3", time.Hour, ended),
		pod("being deleted", "4", time.Hour, deleted),
	}
	for i, a := range order {
		for j, b := range order {
			assert.Equal(t, j-i > 0, Newer(a, b) > 0, "%s, %s", a.Name, b.Name)
		}
	}
}

// A pod that was created in the same second as the failure is another one: the API server's times are whole seconds.
func TestIsReplaced(t *testing.T) {
	failedAt := metav1.Unix(1_800_000_000, 0)
	created := func(d time.Duration) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(failedAt.Add(d))}}
	}
	deleted := created(-time.Hour)
	deleted.DeletionTimestamp = &failedAt
	assert.False(t, IsReplaced(created(-time.Second), failedAt))
	assert.True(t, IsReplaced(created(0), failedAt))
	assert.True(t, IsReplaced(nil, failedAt))
	assert.True(t, IsReplaced(deleted, failedAt))
}
