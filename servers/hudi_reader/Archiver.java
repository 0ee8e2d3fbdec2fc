import org.apache.hadoop.conf.Configuration;
import org.apache.hudi.client.HoodieJavaWriteClient;
import org.apache.hudi.client.common.HoodieJavaEngineContext;
import org.apache.hudi.common.config.HoodieMetadataConfig;
import org.apache.hudi.common.engine.EngineType;
import org.apache.hudi.common.table.HoodieTableMetaClient;
import org.apache.hudi.common.table.HoodieTableVersion;
import org.apache.hudi.config.HoodieArchivalConfig;
import org.apache.hudi.config.HoodieCleanConfig;
import org.apache.hudi.config.HoodieWriteConfig;
import org.apache.hudi.storage.hadoop.HadoopStorageConfiguration;

/**
 * Moves all instants of a table but the last ones into the archive, as Hudi's table services do.
 *
 * <p>Arguments: the table; how many are kept; whether files that only older readers need are deleted before.
 */
public class Archiver {
  public static void main(String[] arguments) throws Exception {
    int kept = Integer.parseInt(arguments[1]);
    HadoopStorageConfiguration storage = new HadoopStorageConfiguration(new Configuration());
    HoodieTableVersion version =
        HoodieTableMetaClient.builder()
            .setConf(storage)
            .setBasePath(arguments[0])
            .build()
            .getTableConfig()
            .getTableVersion();
    HoodieWriteConfig config =
        HoodieWriteConfig.newBuilder()
            .withPath(arguments[0])
            .withEngineType(EngineType.JAVA)
            .withWriteTableVersion(version.versionCode())
            .withAutoUpgradeVersion(false)
            .withEmbeddedTimelineServerEnabled(false)
            .withMetadataConfig(HoodieMetadataConfig.newBuilder().enable(false).build())
            .withCleanConfig(HoodieCleanConfig.newBuilder().retainCommits(1).build())
            .withArchivalConfig(
                HoodieArchivalConfig.newBuilder().archiveCommitsWith(kept, kept + 1).build())
            .build();
    try (HoodieJavaWriteClient<?> client =
        new HoodieJavaWriteClient<>(new HoodieJavaEngineContext(storage), config)) {
      if (Boolean.parseBoolean(arguments[2])) {
        client.clean();
      }
      client.archive();
    }
  }
}
