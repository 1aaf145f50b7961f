{{/* Refuses values that do not fit together. */}}
{{- define "ckptd.check" -}}
{{- if and (eq .Values.form "node") (or (ne .Values.workload "Job") (gt (int .Values.nodes) 1)) -}}
{{- fail "form node: daemons of a node are a group of their own, so leave workload and nodes out" -}}
{{- end -}}
{{- if and (eq .Values.workload "PyTorchJob") (ne .Values.form "supervisor") -}}
{{- fail "workload PyTorchJob: its operator tells the rank only to the trainer's container, so form must be supervisor" -}}
{{- end -}}
{{- if and (eq .Values.workload "PyTorchJob") (lt (int .Values.nodes) 2) -}}
{{- fail "workload PyTorchJob: nodes must be at least 2, one of them is the master" -}}
{{- end -}}
{{- if and (eq .Values.daemon.memory "cuda") (eq .Values.gpus.access "none") -}}
{{- fail "daemon.memory cuda: the daemons need GPUs, so set gpus.access" -}}
{{- end -}}
{{- if and (eq .Values.daemon.memory "cuda") (eq .Values.form "sidecar") (ne .Values.gpus.access "dra") -}}
{{- fail "daemon.memory cuda in a sidecar: two containers share GPUs only by a claim, so set gpus.access to dra, or form to supervisor" -}}
{{- end -}}
{{- if and .Values.daemon.slabs (eq .Values.daemon.memory "cuda") -}}
{{- fail "daemon.slabs: GPU memory is no file, so leave it out, or set daemon.memory to host" -}}
{{- end -}}
{{- if and .Values.trainer.waitFor (ne .Values.form "sidecar") -}}
{{- fail "trainer.waitFor: an init container waits beside a sidecar; for the form supervisor set load.readyWhen" -}}
{{- end -}}
{{- if and .Values.load.readyWhen (not .Values.load.source) -}}
{{- fail "load.readyWhen: it is about what is loaded at the start, so set load.source" -}}
{{- end -}}
{{- end -}}

{{- define "ckptd.selector" -}}
app.kubernetes.io/name: ckptd
app.kubernetes.io/instance: {{ .Values.name }}
{{- end -}}

{{- define "ckptd.meta" -}}
name: {{ .Values.name }}
labels:
  {{- include "ckptd.selector" . | nindent 2 }}
{{- end -}}

{{/* Of the workload itself, which also says the form. */}}
{{- define "ckptd.workloadMeta" -}}
{{ include "ckptd.meta" . }}
  app.kubernetes.io/component: {{ .Values.form }}
{{- end -}}

{{/* "true" where daemons of several pods are one group. */}}
{{- define "ckptd.several" -}}
{{- if gt (int .Values.nodes) 1 -}}true{{- end -}}
{{- end -}}

{{/* The host name of the first pod, for daemons and trainers. */}}
{{- define "ckptd.leader" -}}
{{- $name := .Values.name -}}
{{- if eq .Values.workload "Job" -}}{{ $name }}-0.{{ $name }}
{{- else if eq .Values.workload "JobSet" -}}{{ $name }}-node-0-0.{{ $name }}
{{- else if eq .Values.workload "LeaderWorkerSet" -}}$(LWS_LEADER_ADDRESS)
{{- else if eq .Values.workload "TrainJob" -}}$(JOBSET_NAME)-node-0-0.$(JOBSET_NAME)
{{- else -}}$(MASTER_ADDR)
{{- end -}}
{{- end -}}

{{/* The source of a variable that holds the number of the pod. */}}
{{- define "ckptd.nodeRank" -}}
{{- if eq .Values.workload "LeaderWorkerSet" -}}
value: $(LWS_WORKER_INDEX)
{{- else -}}
valueFrom:
  fieldRef:
    fieldPath: metadata.annotations['batch.kubernetes.io/job-completion-index']
{{- end -}}
{{- end -}}
