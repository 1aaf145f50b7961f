{{/* Variables of the daemons. */}}
{{- define "ckptd.daemonEnv" -}}
- name: CKPTD_RUN_DIR
  value: {{ .Values.runDir }}
- name: CKPTD_JOB
  value: {{ .Values.name }}
{{- if ne .Values.form "supervisor" }}
- name: PET_NPROC_PER_NODE
  value: {{ .Values.perNode | quote }}
{{- end }}
- name: CKPTD_MEMORY
  value: {{ .Values.daemon.memory }}
{{- if eq .Values.daemon.memory "cuda" }}
{{ include "ckptd.deviceOrder" . }}
{{- end }}
# Two pods of one node show the same boot id, and share no folder of sockets.
- name: CKPTD_HOST_ID
  valueFrom:
    fieldRef:
      fieldPath: metadata.uid
- name: CKPTD_HEALTH_PORT
  value: {{ .Values.daemon.healthPort | quote }}
{{- if .Values.daemon.metricsPort }}
- name: CKPTD_METRICS
  value: "[::]:{{ .Values.daemon.metricsPort }}"
{{- end }}
{{- if include "ckptd.several" . }}
- name: CKPTD_PEER_PORT
  value: {{ .Values.daemon.port | quote }}
{{- if ne .Values.workload "PyTorchJob" }}
{{- if and (ne .Values.form "supervisor") (ne .Values.workload "LeaderWorkerSet") }}
# The number of the pod is in JOB_COMPLETION_INDEX, which the Job sets.
- name: PET_NNODES
  value: {{ .Values.nodes | quote }}
{{- end }}
{{- if eq .Values.workload "TrainJob" }}
- name: JOBSET_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['jobset.sigs.k8s.io/jobset-name']
{{- end }}
- name: CKPTD_RENDEZVOUS
  value: {{ include "ckptd.leader" . }}:{{ .Values.daemon.port }}
{{- end }}
{{- if eq .Values.peerAuth.mode "tls" }}
- name: CKPTD_TLS_CERT
  value: /etc/ckptd/peers/tls.crt
- name: CKPTD_TLS_KEY
  value: /etc/ckptd/peers/tls.key
- name: CKPTD_TLS_CA
  value: /etc/ckptd/peers/ca.crt
- name: CKPTD_TLS_NAME
  value: {{ .Values.peerAuth.tlsName }}
{{- else }}
- name: CKPTD_GROUP_KEY_FILE
  value: /etc/ckptd/peers/key
{{- end }}
{{- end }}
{{- if .Values.daemon.slabs }}
- name: CKPTD_SLAB_DIR
  value: /slabs
{{- end }}
{{- with .Values.load.source }}
- name: CKPTD_LOAD
  value: {{ . }}
{{- end }}
{{- with .Values.load.layout }}
- name: CKPTD_LAYOUT
  value: {{ . | quote }}
{{- end }}
{{- with .Values.load.dtype }}
- name: CKPTD_DTYPE
  value: {{ . }}
{{- end }}
{{- with .Values.load.mode }}
- name: CKPTD_LOAD_MODE
  value: {{ . }}
{{- end }}
{{- with .Values.load.readyWhen }}
- name: CKPTD_READY_WHEN
  value: {{ . }}
{{- end }}
{{- range $name, $value := .Values.daemon.env }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}

{{/* Two containers number the same GPUs alike, so that daemon and trainer of a rank take the same one. */}}
{{- define "ckptd.deviceOrder" -}}
- name: CUDA_DEVICE_ORDER
  value: PCI_BUS_ID
{{- end -}}

{{/* Variables of the trainers: where the daemons are, and torchrun's own. */}}
{{- define "ckptd.trainerEnv" -}}
{{- if ne .Values.form "supervisor" }}
- name: CKPTD_RUN_DIR
  value: {{ .Values.runDir }}
- name: CKPTD_JOB
  value: {{ .Values.name }}
{{- if eq .Values.daemon.memory "cuda" }}
{{ include "ckptd.deviceOrder" . }}
{{- end }}
{{- end }}
- name: HOME
  value: /tmp
{{- if and (ne .Values.workload "TrainJob") (ne .Values.workload "PyTorchJob") }}
- name: PET_NPROC_PER_NODE
  value: {{ .Values.perNode | quote }}
{{- if include "ckptd.several" . }}
- name: PET_NNODES
  value: {{ .Values.nodes | quote }}
- name: PET_NODE_RANK
  {{- include "ckptd.nodeRank" . | nindent 2 }}
- name: PET_MASTER_ADDR
  value: {{ include "ckptd.leader" . }}
- name: PET_MASTER_PORT
  value: "29500"
{{- end }}
{{- end }}
{{- range $name, $value := .Values.trainer.env }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}

{{- define "ckptd.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* A probe asks grpc.health.v1 of all daemons of this pod. */}}
{{- define "ckptd.probe" -}}
grpc:
  port: {{ .root.Values.daemon.healthPort }}
  service: {{ .service }}
timeoutSeconds: 5
{{- end -}}

{{- define "ckptd.readiness" -}}
{{- $pytorchjob := eq .Values.workload "PyTorchJob" -}}
{{- if $pytorchjob }}
# The operator's Service hides pods that are not ready, so the group could not find its first pod.
{{- end }}
readinessProbe:
  {{- include "ckptd.probe" (dict "root" . "service" (ternary "liveness" "ckptd.v1.Group" $pytorchjob)) | nindent 2 }}
  periodSeconds: 10
{{- end -}}

{{- define "ckptd.drain" -}}
lifecycle:
  preStop:
    exec:
      command: [ckptctl, drain, --all-ranks, --timeout, 5s]
{{- end -}}

{{/* Resources of a container: .resources, and its GPUs. */}}
{{- define "ckptd.resources" -}}
{{- $resources := deepCopy .resources -}}
{{- if and (eq .root.Values.gpus.access "device-plugin") .requestsGpus -}}
{{- $_ := set $resources "limits" (merge (dict .root.Values.gpus.resource (.root.Values.perNode | toString)) $resources.limits) -}}
{{- end -}}
{{- if eq .root.Values.gpus.access "dra" -}}
{{- $_ := set $resources "claims" (list (dict "name" "gpus")) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{- define "ckptd.commonMounts" -}}
- name: sockets
  mountPath: {{ .Values.runDir }}
- name: models
  mountPath: {{ .Values.models.path }}
  readOnly: true
- name: shm
  mountPath: /dev/shm
{{- end -}}

{{/* Mounts that only the daemons need. */}}
{{- define "ckptd.daemonMounts" -}}
{{- if .Values.daemon.slabs }}
- name: slabs
  mountPath: /slabs
{{- end }}
{{- if include "ckptd.several" . }}
- name: peers
  mountPath: /etc/ckptd/peers
  readOnly: true
{{- end }}
{{- end -}}

{{- define "ckptd.ports" -}}
- name: health
  containerPort: {{ .Values.daemon.healthPort }}
{{- if .Values.daemon.metricsPort }}
- name: metrics
  containerPort: {{ .Values.daemon.metricsPort }}
{{- end }}
{{- if include "ckptd.several" . }}
- name: rendezvous
  containerPort: {{ .Values.daemon.port }}
{{- end }}
{{- end -}}

{{/* Ends when what the trainer needs is there. It comes after the sidecar, which has started then. */}}
{{- define "ckptd.waitContainer" -}}
name: wait
image: {{ .Values.daemon.image }}
imagePullPolicy: {{ .Values.daemon.imagePullPolicy }}
command: [ckptctl]
args: [wait, --for, {{ .Values.trainer.waitFor | quote }}, --timeout, {{ .Values.daemon.startTimeout }}s]
env:
  - name: CKPTD_RUN_DIR
    value: {{ .Values.runDir }}
  - name: CKPTD_JOB
    value: {{ .Values.name }}
resources:
  requests: {cpu: 10m, memory: 64Mi}
  limits: {memory: 64Mi}
securityContext:
  {{- include "ckptd.containerSecurity" . | nindent 2 }}
volumeMounts:
  - name: sockets
    mountPath: {{ .Values.runDir }}
{{- end -}}

{{/* The daemons of a pod, in a container of their own. */}}
{{- define "ckptd.daemonContainer" -}}
name: ckptd
image: {{ .Values.daemon.image }}
imagePullPolicy: {{ .Values.daemon.imagePullPolicy }}
command: [ckptd]
args: [launch, --start-timeout={{ .Values.daemon.startTimeout }}]
env:
  {{- include "ckptd.daemonEnv" . | trim | nindent 2 }}
ports:
  {{- include "ckptd.ports" . | nindent 2 }}
resources:
  {{- include "ckptd.resources" (dict "root" . "resources" .Values.daemon.resources "requestsGpus" (eq .Values.form "node")) | nindent 2 }}
securityContext:
  {{- include "ckptd.containerSecurity" . | nindent 2 }}
# The trainer starts once every daemon of this pod serves. It does not wait for other pods, nor for a load.
startupProbe:
  {{- include "ckptd.probe" (dict "root" . "service" "liveness") | nindent 2 }}
  periodSeconds: 2
  failureThreshold: 150
# A daemon that ends is started again by `ckptd launch`. This is for one that hangs for a minute.
livenessProbe:
  {{- include "ckptd.probe" (dict "root" . "service" "liveness") | nindent 2 }}
  periodSeconds: 10
  failureThreshold: 6
{{ include "ckptd.readiness" . }}
{{ include "ckptd.drain" . }}
volumeMounts:
  {{- include "ckptd.commonMounts" . | nindent 2 }}
  {{- include "ckptd.daemonMounts" . | trim | nindent 2 }}
{{- end -}}

{{/* The trainer beside a sidecar, or with daemons under `ckptd launch` in the same container. */}}
{{- define "ckptd.trainerContainer" -}}
{{- $supervised := eq .Values.form "supervisor" -}}
name: {{ if eq .Values.workload "PyTorchJob" }}pytorch{{ else if eq .Values.workload "TrainJob" }}node{{ else }}trainer{{ end }}
image: {{ .Values.trainer.image }}
imagePullPolicy: {{ .Values.trainer.imagePullPolicy }}
{{- if $supervised }}
command: [ckptd]
args:
  - launch
  - --start-timeout={{ .Values.daemon.startTimeout }}
  {{- if eq .Values.workload "PyTorchJob" }}
  - --nproc={{ .Values.perNode }}
  - --nnodes={{ .Values.nodes }}
  - --node-rank=$(RANK)
  - --rendezvous=$(MASTER_ADDR):{{ .Values.daemon.port }}
  {{- end }}
  - --
  {{- if eq .Values.workload "PyTorchJob" }}
  - {{ first .Values.trainer.command }}
  - --nproc-per-node={{ .Values.perNode }}
  - --nnodes={{ .Values.nodes }}
  - --node-rank=$(RANK)
  - --master-addr=$(MASTER_ADDR)
  - --master-port=$(MASTER_PORT)
  {{- range rest .Values.trainer.command }}
  - {{ . }}
  {{- end }}
  {{- else }}
  {{- toYaml .Values.trainer.command | nindent 2 }}
  {{- end }}
{{- else }}
command:
  {{- toYaml .Values.trainer.command | nindent 2 }}
{{- end }}
env:
  {{- if $supervised }}
  {{- include "ckptd.daemonEnv" . | trim | nindent 2 }}
  {{- end }}
  {{- include "ckptd.trainerEnv" . | trim | nindent 2 }}
{{- if $supervised }}
ports:
  {{- if eq .Values.workload "PyTorchJob" }}
  - name: pytorchjob-port
    containerPort: 23456
  {{- end }}
  {{- include "ckptd.ports" . | nindent 2 }}
{{- end }}
resources:
  {{- include "ckptd.resources" (dict "root" . "resources" .Values.trainer.resources "requestsGpus" true) | nindent 2 }}
securityContext:
  {{- include "ckptd.containerSecurity" . | nindent 2 }}
{{- if $supervised }}
{{ include "ckptd.readiness" . }}
{{ include "ckptd.drain" . }}
{{- end }}
volumeMounts:
  {{- include "ckptd.commonMounts" . | nindent 2 }}
  - name: tmp
    mountPath: /tmp
  {{- with .Values.trainer.volumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- if $supervised }}
  {{- include "ckptd.daemonMounts" . | trim | nindent 2 }}
  {{- end }}
{{- end -}}
