package nodepatch

import (
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// ErrReplaced means that the Node was deleted and created again since it was read: the checks have verified the old one.
var ErrReplaced = errors.New("the node was deleted and created again under the same name")

// ErrBlocked means that a client has added a taint that blocks the release: what was verified does not count any more.
var ErrBlocked = errors.New("a foreign taint was added while the node was patched")

// ErrOutdated means that the Node was started again since base was read, or released and is to be verified again.
var ErrOutdated = errors.New("the node was started again, or released, since it was read")

// Refused means that the API server will not apply the patch, and a retry does not help.
type Refused struct{ Err error }

func (r *Refused) Error() string { return fmt.Sprintf("the API server refuses the patch: %v", r.Err) }
func (r *Refused) Unwrap() error { return r.Err }

// IsFinal reports whether a retry would get the same answer: a client error other than "not now" or
// "not on this version of the object".
func IsFinal(err error) bool {
	switch code := statusCode(err); code {
	case http.StatusConflict, http.StatusUnprocessableEntity, http.StatusTooManyRequests, http.StatusRequestTimeout:
		return false
	default:
		return code >= 400 && code < 500
	}
}

// statusCode returns the HTTP status in the API server's answer, or 0 if err is something else. The
// code decides, because an admission webhook may set any reason.
func statusCode(err error) int32 {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return status.Status().Code
	}
	return 0
}
