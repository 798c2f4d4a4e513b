#!/bin/bash
# Writes EC2's notice that this spot instance ends to a file, when there is one. Started by systemd on the instance:
#   spot_notice.sh http://169.254.169.254 FILE [SECONDS]
# The worker's container reads the file (gpu_worker/service/spot_notice.py); it cannot reach the metadata itself.
set -u
metadata=$1 file=$2 every=${3:-5}
while sleep "$every"; do
  token=$(curl -sf -m 2 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' "$metadata/latest/api/token") || continue
  curl -sf -m 2 -H "X-aws-ec2-metadata-token: $token" -o "$file.new" "$metadata/latest/meta-data/spot/instance-action" &&
    chmod 644 "$file.new" && mv "$file.new" "$file"
done
