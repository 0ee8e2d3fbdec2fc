import org.apache.hadoop.conf.Configuration;
import org.apache.hudi.common.config.HoodieMetadataConfig;
import org.apache.hudi.common.engine.HoodieEngineContext;
import org.apache.hudi.common.engine.HoodieLocalEngineContext;
import org.apache.hudi.common.fs.FSUtils;
import org.apache.hudi.common.model.HoodieBaseFile;
import org.apache.hudi.common.table.HoodieTableMetaClient;
import org.apache.hudi.common.table.TableSchemaResolver;
import org.apache.hudi.common.table.timeline.HoodieInstant;
import org.apache.hudi.common.table.view.FileSystemViewManager;
import org.apache.hudi.common.table.view.HoodieTableFileSystemView;
import org.apache.hudi.storage.hadoop.HadoopStorageConfiguration;

/** Prints what Hudi's readers see of a table, a line for each fact. */
public class Reader {
  public static void main(String[] arguments) throws Exception {
    HadoopStorageConfiguration storage = new HadoopStorageConfiguration(new Configuration());
    HoodieTableMetaClient table =
        HoodieTableMetaClient.builder().setConf(storage).setBasePath(arguments[0]).build();
    System.out.println("version " + table.getTableConfig().getTableVersion().versionCode());
    System.out.println("columns " + new TableSchemaResolver(table).getTableSchema(false));
    for (HoodieInstant instant : table.getActiveTimeline().getInstants()) {
      System.out.println((instant.isCompleted() ? "completed " : "pending ") + instant.requestedTime());
    }
    HoodieEngineContext engine = new HoodieLocalEngineContext(storage);
    HoodieMetadataConfig listing = HoodieMetadataConfig.newBuilder().enable(false).build();
    HoodieTableFileSystemView view =
        FileSystemViewManager.createInMemoryFileSystemView(engine, table, listing);
    for (String partition : FSUtils.getAllPartitionPaths(engine, table, listing)) {
      for (HoodieBaseFile file : (Iterable<HoodieBaseFile>) view.getLatestBaseFiles(partition)::iterator) {
        System.out.println("file " + (partition.isEmpty() ? "" : partition + "/") + file.getFileName());
      }
    }
  }
}
