// Package apitest answers requests and applies patches as the Kubernetes API server does, for tests.
package apitest

import (
	"encoding/json"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Answer sends an object.
func Answer(w http.ResponseWriter, code int, object any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(object)
}

// AnswerStatus sends an error. It returns true: the request is answered.
func AnswerStatus(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) bool {
	Answer(w, code, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message})
	return true
}
